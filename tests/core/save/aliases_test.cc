#include "core/save/internal/aliases.h"

#include <map>

#include "core/tensor/internal/memory_span.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using ::testing::ElementsAre;

class PlanTensorsTest : public ::testing::Test {
 protected:
  TensorView View(uint64_t first_element, Shape shape, std::vector<uint64_t> strides = {}) {
    return {DType::kFloat32, std::move(shape), std::move(strides),
            reinterpret_cast<const std::byte*>(memory_.data() + first_element)};
  }

  std::map<std::string, PlannedTensor> Plan(const std::vector<NamedTensor>& tensors) {
    auto planned = PlanTensors(tensors);
    EXPECT_TRUE(cairn::testing::IsOk(planned));
    std::map<std::string, PlannedTensor> by_name;
    std::string last;
    for (PlannedTensor& tensor : *planned) {
      EXPECT_LE(last, tensor.info.fqn) << "not in key order";
      last = tensor.info.fqn;
      by_name.emplace(tensor.info.fqn, std::move(tensor));
    }
    return by_name;
  }

  std::vector<float> memory_ = std::vector<float>(1000);
};

TEST_F(PlanTensorsTest, NeighboursAreIndependent) {
  const auto plan = Plan({{"b", View(0, {10})}, {"a", View(10, {10})}});
  EXPECT_EQ(plan.at("a").info.alias_of, std::nullopt);
  EXPECT_EQ(plan.at("b").info.alias_of, std::nullopt);
}

TEST_F(PlanTensorsTest, TiedWeightsAreStoredUnderTheFirstName) {
  const auto plan = Plan({{"wte", View(0, {4, 5})}, {"head", View(0, {4, 5})}});
  EXPECT_EQ(plan.at("head").info.alias_of, std::nullopt);
  EXPECT_EQ(plan.at("wte").info.alias_of, "head");
  EXPECT_EQ(plan.at("wte").info.alias_offset_bytes, 0u);
  EXPECT_THAT(plan.at("wte").info.alias_strides, ElementsAre(5, 1));
}

TEST_F(PlanTensorsTest, TheCoveringTensorOwnsItsViews) {
  const auto plan =
      Plan({{"a_view", View(8, {2, 3}, {4, 1})}, {"flat", View(0, {100})}, {"z", View(60, {40})}});
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan.at("flat").info.alias_of, std::nullopt);
  EXPECT_EQ(plan.at("a_view").info.alias_of, "flat");
  EXPECT_EQ(plan.at("a_view").info.alias_offset_bytes, 32u);
  EXPECT_THAT(plan.at("a_view").info.alias_strides, ElementsAre(4, 1));
  EXPECT_EQ(plan.at("z").info.alias_offset_bytes, 240u);
}

TEST_F(PlanTensorsTest, PartialOverlapGetsHiddenStorage) {
  const auto plan = Plan({{"b", View(0, {20})}, {"a", View(10, {20})}});
  ASSERT_EQ(plan.size(), 3u);
  const PlannedTensor& storage = plan.at("a.__storage__");
  EXPECT_TRUE(storage.info.hidden);
  EXPECT_EQ(storage.info.dtype, DType::kUInt8);
  EXPECT_THAT(storage.info.shape, ElementsAre(120));
  EXPECT_EQ(plan.at("a").info.alias_of, "a.__storage__");
  EXPECT_EQ(plan.at("a").info.alias_offset_bytes, 40u);
  EXPECT_EQ(plan.at("b").info.alias_offset_bytes, 0u);
}

TEST_F(PlanTensorsTest, HiddenStorageAvoidsTakenNames) {
  const auto plan =
      Plan({{"b", View(0, {20})}, {"a", View(10, {20})}, {"a.__storage__", View(500, {1})}});
  EXPECT_FALSE(plan.at("a.__storage__").info.hidden);
  EXPECT_TRUE(plan.at("a.__storage___").info.hidden);
}

TEST_F(PlanTensorsTest, AStridedTensorAloneOwnsItself) {
  const auto plan = Plan({{"t", View(0, {5, 4}, {1, 5})}, {"x", View(500, {7}, {0})}});
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan.at("t").info.alias_of, std::nullopt);
  EXPECT_EQ(plan.at("x").info.nbytes, 28u);
}

TEST_F(PlanTensorsTest, TensorsWithoutElementsShareNothing) {
  const auto plan = Plan({{"a", View(0, {0, 3})}, {"b", View(0, {0})}, {"c", View(0, {3})}});
  for (const auto& [name, tensor] : plan) EXPECT_EQ(tensor.info.alias_of, std::nullopt) << name;
}

TEST_F(PlanTensorsTest, RefusesBadTensorsByName) {
  EXPECT_THAT(PlanTensors(std::vector<NamedTensor>{{"k", {DType::kFloat32, {2}, {}, nullptr}}}),
              IsError(ErrorCode::kInvalidArgument, "k"));
  EXPECT_THAT(PlanTensors(std::vector<NamedTensor>{{"k", View(0, {2}, {1, 1})}}),
              IsError(ErrorCode::kInvalidArgument, "strides"));
  EXPECT_THAT(PlanTensors(std::vector<NamedTensor>{{"k", View(0, {3}, {uint64_t{1} << 63})}}),
              IsError(ErrorCode::kInvalidArgument, "address space"));
  EXPECT_THAT(
      PlanTensors(std::vector<NamedTensor>{{"k", {static_cast<DType>(99), {1}, {}, nullptr}}}),
      IsError(ErrorCode::kInvalidArgument, "99"));
}

// Against the definition: two tensors are in one group iff a chain of overlapping spans joins them.
TEST_F(PlanTensorsTest, GroupsAreTheConnectedComponents) {
  SeededRandom random;
  for (int round = 0; round < 300; ++round) {
    std::vector<MemorySpan> spans(random.Between(1, 12));
    for (MemorySpan& span : spans) {
      span.begin = random.Between(1, 60);
      span.end = span.begin + random.Between(0, 12);
    }
    std::vector<size_t> component(spans.size());
    for (size_t i = 0; i < spans.size(); ++i) component[i] = i;
    for (size_t pass = 0; pass < spans.size(); ++pass) {
      for (size_t i = 0; i < spans.size(); ++i) {
        for (size_t j = 0; j < spans.size(); ++j) {
          if (spans[i].begin < spans[i].end && spans[j].begin < spans[j].end &&
              spans[i].begin < spans[j].end && spans[j].begin < spans[i].end) {
            component[i] = component[j] = std::min(component[i], component[j]);
          }
        }
      }
    }
    std::map<size_t, size_t> group_of;  // tensor -> group
    const auto groups = OverlapGroups(spans);
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const size_t i : groups[g]) ASSERT_TRUE(group_of.emplace(i, g).second);
    }
    for (size_t i = 0; i < spans.size(); ++i) {
      ASSERT_EQ(group_of.contains(i), spans[i].begin < spans[i].end);
      for (size_t j = 0; j < i && group_of.contains(i); ++j) {
        if (!group_of.contains(j)) continue;
        ASSERT_EQ(group_of[i] == group_of[j], component[i] == component[j]);
      }
    }
  }
}

}  // namespace
}  // namespace cairn::core::internal
