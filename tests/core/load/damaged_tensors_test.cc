// Damaged tensors are found, whatever is damaged, and all others are not.

#include "core/upkeep/damaged_tensors.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/step/contents.h"
#include "kv/read/snapshot.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DamagedTensorsTest : public StoreTest {
 protected:
  /// Saves tensors of many sizes, with deltas and compression in the later steps.
  void SaveAll() {
    for (uint64_t i = 0; i < 400; ++i) {
      tensors_.emplace_back(DType::kBFloat16, Shape{i % 7 == 0 ? 50'000 : i % 50},
                            static_cast<uint8_t>(i % 250));
    }
    for (const uint64_t step : {1, 2, 3}) {
      StateDict state;
      for (size_t i = 0; i < tensors_.size(); ++i) {
        if (i % 3 == 0 && !tensors_[i].bytes.empty()) tensors_[i].bytes[0] = std::byte(step);
        state.root().Tensor(fmt::format("t{:03}", i), tensors_[i].view());
      }
      state.root().Tensor("tied", tensors_[7].view());
      Save(step, state, {.max_deltas = step == 2 ? 4u : 0u, .compress = step == 3});
    }
  }

  std::vector<std::string> Damaged(uint64_t step) {
    const auto contents = store->List(step);
    EXPECT_TRUE(testing::IsOk(contents));
    const auto errors = FindDamagedTensors(*store, contents->step, contents->tensors);
    EXPECT_TRUE(testing::IsOk(errors));
    std::vector<std::string> fqns;
    for (const Error& error : *errors) {
      EXPECT_EQ(error.code, ErrorCode::kDataLoss);
      EXPECT_EQ(error.step, step);
      fqns.push_back(error.key);
    }
    return fqns;
  }

  void Flip(uint64_t step, const std::string& fqn) {
    const auto chunks = store->Chunks(Step(step), fqn);
    ASSERT_TRUE(testing::IsOk(chunks));
    const kv::Extent extent =
        (*chunks)[0].deltas.empty() ? (*chunks)[0].extents.front() : (*chunks)[0].deltas.back();
    const std::string file = FileOf(extent);
    Reopen(kv::OpenMode::kRead);
    FlipByte(file, extent.offset_bytes);
  }

  std::vector<TestTensor> tensors_;
};

TEST_F(DamagedTensorsTest, OnlyThoseWithDamageAndTheirAliasesAreFound) {
  SaveAll();
  EXPECT_THAT(Damaged(1), IsEmpty());
  Flip(1, "t007");
  Flip(2, "t021");  // its delta
  Flip(3, "t042");  // compressed
  EXPECT_THAT(Damaged(1), ElementsAre("t007", "tied"));
  EXPECT_THAT(Damaged(2), ElementsAre("t007", "t021", "tied"));
  EXPECT_THAT(Damaged(3), ::testing::Contains("t042"));
  EXPECT_EQ(LoadBytes(1, "t014").size(), tensors_[14].bytes.size());
}

TEST_F(DamagedTensorsTest, AMissingSegmentDamagesWhatItContains) {
  SaveAll();
  const auto chunks = store->Chunks(Step(2), "t021");
  ASSERT_TRUE(testing::IsOk(chunks));
  const std::string file = FileOf((*chunks)[0].deltas.back());
  Reopen(kv::OpenMode::kRead);
  std::filesystem::remove(file);
  EXPECT_THAT(Damaged(1), IsEmpty());
  const auto damaged = Damaged(2);
  EXPECT_GT(damaged.size(), 100u);
  for (const std::string& fqn : damaged) {
    if (fqn == "tied") continue;
    EXPECT_EQ(std::stoi(fqn.substr(1)) % 3, 0) << fqn;
  }
}

}  // namespace
}  // namespace cairn::core
