// The plan of a state that was planned before is the plan that the state would get for the first
// time.

#include "core/save/internal/plan_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/save/internal/save_planner.h"
#include "core/save/save_options.h"
#include "core/tensor/tensor.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;

constexpr uint64_t kChunkBytes = 100'000;

SaveOptions Stated(std::vector<std::string> patterns) {
  return {.unchanged = std::move(patterns), .chunk_bytes = kChunkBytes};
}

void ExpectSameShard(const PlannedShard& a, const PlannedShard& b) {
  EXPECT_EQ(a.tensor, b.tensor);
  EXPECT_EQ(a.grid.box(), b.grid.box());
  EXPECT_EQ(a.first_chunk, b.first_chunk);
  EXPECT_EQ(a.end_chunk, b.end_chunk);
  EXPECT_EQ(a.source.data, b.source.data);
  EXPECT_EQ(a.source.dtype, b.source.dtype);
  EXPECT_EQ(a.source.shape, b.source.shape);
  EXPECT_EQ(a.source.strides, b.source.strides);
  EXPECT_EQ(a.skipped_bytes, b.skipped_bytes);
  EXPECT_EQ(a.has_stable_source, b.has_stable_source);
  EXPECT_EQ(a.unchanged, b.unchanged);
  EXPECT_EQ(a.is_stated_unchanged, b.is_stated_unchanged);
  EXPECT_EQ(a.compared_chunk, b.compared_chunk);
}

void ExpectSamePlan(const SavePlan& a, const SavePlan& b) {
  EXPECT_EQ(a.structure, b.structure);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.tensor_count, b.tensor_count);
  EXPECT_EQ(a.logical_bytes, b.logical_bytes);
  EXPECT_EQ(a.own_bytes, b.own_bytes);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].fqn, b.tensors[i].fqn);
    EXPECT_EQ(a.tensors[i].dtype, b.tensors[i].dtype);
    EXPECT_EQ(a.tensors[i].shape, b.tensors[i].shape);
    EXPECT_EQ(a.tensors[i].nbytes, b.tensors[i].nbytes);
    EXPECT_EQ(a.tensors[i].chunk_count, b.tensors[i].chunk_count);
    EXPECT_EQ(a.tensors[i].alias_of, b.tensors[i].alias_of);
    EXPECT_EQ(a.tensors[i].alias_offset_bytes, b.tensors[i].alias_offset_bytes);
    EXPECT_EQ(a.tensors[i].alias_strides, b.tensors[i].alias_strides);
    EXPECT_EQ(a.tensors[i].hidden, b.tensors[i].hidden);
  }
  ASSERT_EQ(a.shards.size(), b.shards.size());
  for (size_t i = 0; i < a.shards.size(); ++i) ExpectSameShard(a.shards[i], b.shards[i]);
}

// Does to a plan what a save in the background does.
void Use(SavePlan& plan) {
  for (PlannedShard& shard : plan.shards) {
    shard.source.data = nullptr;
    shard.has_stable_source = true;
    shard.unchanged.resize(shard.chunk_count());
    shard.pages.resize(shard.chunk_count());
  }
  plan.has_deltas = true;
}

class PlanCacheTest : public ::testing::Test {
 protected:
  // Plans it twice, so that the second plan is remembered, and compares both with a first plan.
  void ExpectRightPlans(const StateDict& state, const SaveOptions& options) {
    for (int i = 0; i < 2; ++i) {
      ++step_;
      SCOPED_TRACE(step_);
      PlanCache fresh;
      CAIRN_ASSERT_OK_AND_ASSIGN(const SavePlan* expected, fresh.Plan(state, options, {}, step_));
      CAIRN_ASSERT_OK(cache_.Plan(state, options, {}, step_));
      SavePlan plan = cache_.Take();
      ExpectSamePlan(plan, *expected);
      Use(plan);
    }
  }

  StateDict Make(const std::string& name, TensorView view, Value value = int64_t{1}) const {
    StateDict state;
    state.root().Tensor(name, std::move(view));
    state.root().Tensor("other", other_.view());
    state.root().Value("value", std::move(value));
    return state;
  }

  const TestTensor tensor_{DType::kUInt8, {8, kChunkBytes}, 1};
  const TestTensor other_{DType::kUInt8, {3, kChunkBytes}, 2};
  PlanCache cache_;
  uint64_t step_ = 0;
};

TEST_F(PlanCacheTest, EveryChangeOfTheStateIsInThePlan) {
  const SaveOptions options = Stated({"a", "other"});
  TensorView view = tensor_.view();
  ExpectRightPlans(Make("a", view), options);
  ExpectRightPlans(Make("a", view, int64_t{2}), options);
  ExpectRightPlans(Make("a", view, 2.0), options);
  ExpectRightPlans(Make("a", view, 0.0), options);
  ExpectRightPlans(Make("a", view, -0.0), options);
  ExpectRightPlans(Make("b", view, -0.0), options);
  ExpectRightPlans(Make("b", other_.view()), options);  // the same memory twice
  view.shape = {4, 2 * kChunkBytes};
  ExpectRightPlans(Make("b", view), options);
  view.dtype = DType::kInt8;
  ExpectRightPlans(Make("b", view), options);
  view.shape = {8, kChunkBytes / 2};
  view.strides = {kChunkBytes, 1};
  ExpectRightPlans(Make("b", view), options);
  StateDict list = Make("b", view);
  list.root().List("list").Value("0", int64_t{1});
  ExpectRightPlans(list, options);
  StateDict tuple = Make("b", view);
  tuple.root().List("list", NodeKind::kTuple).Value("0", int64_t{1});
  ExpectRightPlans(tuple, options);
}

TEST_F(PlanCacheTest, OtherOptionsGetAnotherPlan) {
  const StateDict state = Make("a", tensor_.view());
  ExpectRightPlans(state, Stated({"a"}));
  ExpectRightPlans(state, Stated({"other"}));
  ExpectRightPlans(state, Stated({}));
  ExpectRightPlans(state, Stated({"**", "!a"}));
  ExpectRightPlans(state, {.unchanged = {"**", "!a"}, .chunk_bytes = 2 * kChunkBytes});
}

TEST_F(PlanCacheTest, OptionsAreCheckedForARememberedPlanToo) {
  const StateDict state = Make("a", tensor_.view());
  ExpectRightPlans(state, Stated({"a"}));
  SaveOptions deltas = Stated({"a"});
  deltas.max_deltas = 1000;
  EXPECT_THAT(cache_.Plan(state, deltas, {}, 5),
              IsError(ErrorCode::kInvalidArgument, "max_deltas"));
  SaveOptions tags = Stated({"a"});
  tags.tags = {""};
  EXPECT_THAT(cache_.Plan(state, tags, {}, 5), IsError(ErrorCode::kInvalidArgument, "tag"));
  ExpectRightPlans(state, Stated({"a"}));
}

TEST_F(PlanCacheTest, ThePlanOfTheSameStateIsUsedAgain) {
  const StateDict state = Make("a", tensor_.view());
  const SaveOptions options = Stated({});
  CAIRN_ASSERT_OK_AND_ASSIGN(const SavePlan* plan, cache_.Plan(state, options, {}, 1));
  EXPECT_TRUE(cache_.is_remembered());
  EXPECT_FALSE(cache_.has_same_records());
  const void* const shards = plan->shards.data();
  for (const char* pattern : {"a", "other"}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(plan, cache_.Plan(state, Stated({pattern}), {}, 2));
    EXPECT_TRUE(cache_.has_same_records());
    EXPECT_EQ(plan->shards.data(), shards);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(plan, cache_.Plan(Make("a", tensor_.view(), 2.0), options, {}, 3));
  EXPECT_FALSE(cache_.has_same_records());
  EXPECT_EQ(plan->shards.data(), shards);
}

TEST_F(PlanCacheTest, TheSameRecordsFromOtherMemoryAreRecognized) {
  const TestTensor copy(DType::kUInt8, {8, kChunkBytes}, 1);
  CAIRN_ASSERT_OK(cache_.Plan(Make("a", tensor_.view()), Stated({}), {}, 1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const SavePlan* plan,
                             cache_.Plan(Make("a", copy.view()), Stated({}), {}, 2));
  EXPECT_TRUE(cache_.has_same_records());
  EXPECT_EQ(plan->shards[0].source.data, copy.view().data);
  CAIRN_ASSERT_OK(cache_.Plan(Make("b", copy.view()), Stated({}), {}, 3));
  EXPECT_FALSE(cache_.has_same_records());
}

TEST_F(PlanCacheTest, OnlySavesOfOneProcessWithTheSameChunksAreCompared) {
  const StateDict state = Make("a", tensor_.view());
  CAIRN_ASSERT_OK(cache_.Plan(state, Stated({}), {}, 1));
  CAIRN_ASSERT_OK(cache_.Plan(state, {.chunk_bytes = 2 * kChunkBytes}, {}, 2));
  EXPECT_FALSE(cache_.has_same_records());
  CAIRN_ASSERT_OK(cache_.Plan(state, Stated({}), {.rank = 0, .world_size = 2}, 3));
  EXPECT_FALSE(cache_.is_remembered());
  CAIRN_ASSERT_OK(cache_.Plan(state, Stated({}), {}, 4));
  EXPECT_FALSE(cache_.has_same_records());
}

}  // namespace
}  // namespace cairn::core::internal
