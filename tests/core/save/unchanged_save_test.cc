// Saves of a state that is the one that the store has saved last.

#include <fmt/format.h>

#include <cmath>

#include "core/save/save_options.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

constexpr uint64_t kPage = 64 << 10;

class UnchangedSaveTest : public StoreTest {
 protected:
  /// A state of `count` tensors of two pages each, a tied one and a value.
  void MakeState(int count) {
    tensors.clear();
    for (int i = 0; i < count; ++i) {
      tensors.emplace_back(DType::kInt8, Shape{2, kPage}, static_cast<uint64_t>(i));
    }
    state = StateDict();
    for (int i = 0; i < count; ++i) state.root().Tensor(Name(i), tensors[i].view());
    state.root().Tensor("tied", tensors[0].view());
    state.root().Value("lr", 0.5);
  }
  static std::string Name(int i) { return fmt::format("t{:03}", i); }

  void ExpectStep(uint64_t step) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(LoadBytes(step, Name(static_cast<int>(i))), tensors[i].bytes) << step << " " << i;
    }
    EXPECT_EQ(LoadBytes(step, "tied"), tensors[0].bytes);
  }

  std::vector<TestTensor> tensors;
  StateDict state;
};

TEST_F(UnchangedSaveTest, StepsHaveTheRecordsOfTheirBase) {
  for (const int count : {1, 40}) {  // with few records, the table of each step is a complete one
    SCOPED_TRACE(count);
    MakeState(count);
    const uint64_t first = static_cast<uint64_t>(count) * 10;
    Save(first, state);
    for (uint64_t step = first + 1; step < first + 4; ++step) {
      const SaveReport report = Save(step, state);
      EXPECT_EQ(report.written_bytes, 0u);
      EXPECT_EQ(report.chunks, static_cast<uint64_t>(count));
      EXPECT_EQ(report.chunks_reused, report.chunks);
      EXPECT_EQ(report.logical_bytes, static_cast<uint64_t>(count) * 2 * kPage);
      const kv::StepInfo info = Step(step);
      EXPECT_EQ(info.base_step, step - 1);
      EXPECT_EQ(info.tensor_count, static_cast<uint64_t>(count) + 1);
      EXPECT_EQ(info.value_count, 1u);
      EXPECT_EQ(info.reused_chunk_count, info.chunk_count);
      EXPECT_EQ(info.structure, Step(first).structure);
      ExpectStep(step);
      CAIRN_ASSERT_OK_AND_ASSIGN(const Diff diff, store->Compare(first, step));
      EXPECT_EQ(diff.changes.size(), 0u);
    }
  }
  EXPECT_TRUE(VerifyAll().empty());
  Reopen(kv::OpenMode::kRead);
  ExpectStep(403);
}

TEST_F(UnchangedSaveTest, AStepOutlivesThoseThatWroteItsSegments) {
  MakeState(20);
  uint64_t step = 0;
  for (TestTensor& tensor : tensors) {  // one segment each: too many for the entry of the step
    tensor.bytes[0] ^= std::byte{1};
    Save(++step, state);
  }
  EXPECT_EQ(Save(++step, state).written_bytes, 0u);
  std::vector<uint64_t> before(step - 1);
  for (uint64_t i = 0; i < before.size(); ++i) before[i] = i + 1;
  CAIRN_ASSERT_OK(store->Delete(before));
  Reopen();
  ExpectStep(step);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(UnchangedSaveTest, OneChangedPageAnywhereIsWritten) {
  MakeState(8);
  Save(1, state);
  uint64_t step = 1;
  for (TestTensor& tensor : tensors) {
    Save(++step, state);
    tensor.bytes[kPage + 5] ^= std::byte{1};
    const SaveReport report = Save(++step, state);
    EXPECT_EQ(report.written_bytes, kPage);
    EXPECT_EQ(report.chunks_reused, report.chunks - 1);
    ExpectStep(step);
  }
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(UnchangedSaveTest, TheSameBytesElsewhereInMemoryAreUnchanged) {
  MakeState(5);
  Save(1, state);
  const std::vector<TestTensor> moved = tensors;
  StateDict copy;
  for (int i = 0; i < 5; ++i) copy.root().Tensor(Name(i), moved[i].view());
  copy.root().Tensor("tied", moved[0].view());
  copy.root().Value("lr", 0.5);
  EXPECT_EQ(Save(2, copy).written_bytes, 0u);
  ExpectStep(2);
}

TEST_F(UnchangedSaveTest, ChangedRecordsAreWritten) {
  MakeState(5);
  Save(1, state);
  state.values[0] = 0.0;
  Save(2, state);
  state.values[0] = -0.0;  // equal, but with other bits
  Save(3, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(3, {}));
  ASSERT_EQ(contents.values.size(), 1u);
  EXPECT_TRUE(std::signbit(std::get<double>(contents.values[0].value)));

  state.tensors[1].dtype = DType::kUInt8;  // of the same size
  Save(4, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TensorInfo tensor, store->FindTensor(Step(4), Name(1)));
  EXPECT_EQ(tensor.dtype, DType::kUInt8);

  state.tree.nodes[1].key = "renamed";
  Save(5, state);
  EXPECT_EQ(LoadBytes(5, "renamed"), tensors[0].bytes);
  EXPECT_EQ(store->FindTensor(Step(5), Name(0)).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(UnchangedSaveTest, OnlyTheBaseCounts) {
  MakeState(5);
  Save(1, state);
  tensors[3].bytes[0] ^= std::byte{1};
  Save(2, state);
  EXPECT_GT(Save(3, state, {.base_step = 1}).written_bytes, 0u);
  ExpectStep(3);
  EXPECT_EQ(Save(4, state, {.incremental = false}).chunks_reused, 0u);
  EXPECT_EQ(Save(5, state).written_bytes, 0u);
  EXPECT_EQ(Step(5).base_step, 4u);
  const uint64_t newest[] = {5, 4};
  CAIRN_ASSERT_OK(store->Delete(newest));
  EXPECT_EQ(Save(6, state).written_bytes, 0u);  // compared with step 3
  EXPECT_EQ(Step(6).base_step, 3u);
  EXPECT_EQ(Save(6, state, {.overwrite = true}).written_bytes, 0u);
  EXPECT_THAT(store->Save(6, state), IsError(ErrorCode::kConflict, "exists"));
  EXPECT_EQ(Save(7, state, {.chunk_bytes = kPage}).chunks, 10u);
  for (const uint64_t step : {6, 7}) ExpectStep(step);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(UnchangedSaveTest, ProgressAscendsToTheTotal) {
  MakeState(30);
  Save(1, state);
  for (const bool changed : {false, true}) {
    if (changed) tensors.back().bytes[0] ^= std::byte{1};
    std::vector<uint64_t> seen;
    Save(changed ? 3 : 2, state, {.progress = [&](uint64_t done, uint64_t total) {
           EXPECT_EQ(total, 30 * 2 * kPage);
           seen.push_back(done);
           return true;
         }});
    ASSERT_FALSE(seen.empty());
    EXPECT_TRUE(std::ranges::is_sorted(seen));
    EXPECT_EQ(seen.back(), 30 * 2 * kPage);
  }
  EXPECT_THAT(store->Save(4, state, {.progress = [](uint64_t, uint64_t) { return false; }}),
              IsError(ErrorCode::kCancelled, ""));
  EXPECT_EQ(Save(4, state).written_bytes, 0u);
  ExpectStep(4);
}

}  // namespace
}  // namespace cairn::core
