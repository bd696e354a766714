// Saves of a state that the store has saved before, unchanged or with few changes: unchanged chunks
// become references.

#include <fmt/format.h>

#include "core/inspect/compare.h"
#include "core/save/save_options.h"
#include "tests/core/tensor/strided_fixture.h"
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
    state = NumberedState(tensors);
    state.root().Tensor("tied", tensors[0].view());
    state.root().Value("lr", 0.5);
  }
  void ExpectStep(uint64_t step) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(LoadBytes(step, fmt::format("t{}", i)), tensors[i].bytes) << step << " " << i;
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
      CAIRN_ASSERT_OK_AND_ASSIGN(const Diff diff, CompareSteps(store->kv(), first, step));
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
  StateDict copy = NumberedState(moved);
  copy.root().Tensor("tied", moved[0].view());
  copy.root().Value("lr", 0.5);
  EXPECT_EQ(Save(2, copy).written_bytes, 0u);
  ExpectStep(2);
}

// A store remembers the plan of its last save, so each state is saved twice: the second time with
// the plan of the first.
class RememberedPlanTest : public StoreTest {
 protected:
  static constexpr uint64_t kChunkBytes = 100'000;

  void ExpectSaved(const StateDict& state, const SaveOptions& options) {
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE(++step_);
      Save(step_, state, options);
      CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(step_));
      EXPECT_EQ(contents.tree, state.tree);
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto leaves, FlattenTree(state.tree));
      for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
        const std::string& fqn = leaves[leaf].fqn;
        if (state.tree.nodes[leaves[leaf].node].kind == NodeKind::kValue) {
          const auto found = std::ranges::find(contents.values, fqn, &ValueInfo::fqn);
          ASSERT_NE(found, contents.values.end()) << fqn;
          EXPECT_EQ(EncodeValue(found->value).value(),
                    EncodeValue(state.values[state.slot[leaf]]).value())
              << fqn;
          continue;
        }
        const TensorView& expected = state.tensors[state.slot[leaf]];
        CAIRN_ASSERT_OK_AND_ASSIGN(const TensorInfo tensor, store->FindTensor(Step(step_), fqn));
        EXPECT_EQ(tensor.dtype, expected.dtype) << fqn;
        EXPECT_EQ(tensor.shape, expected.shape) << fqn;
        EXPECT_EQ(LoadBytes(step_, fqn), NaiveRowMajor(expected)) << fqn;
      }
    }
  }

  StateDict Make(const std::string& name, TensorView view, Value value = int64_t{1}) const {
    StateDict state = StateOf({{name, std::move(view)}, {"other", other_.view()}});
    state.root().Value("value", std::move(value));
    return state;
  }

  const TestTensor tensor_{DType::kUInt8, {8, kChunkBytes}, 1};
  const TestTensor other_{DType::kUInt8, {3, kChunkBytes}, 2};
  uint64_t step_ = 0;
};

TEST_F(RememberedPlanTest, EveryChangeOfTheStateIsSaved) {
  const SaveOptions options{.chunk_bytes = kChunkBytes};
  TensorView view = tensor_.view();
  ExpectSaved(Make("a", view), options);
  for (const Value& value : {Value(int64_t{2}), Value(2.0), Value(0.0), Value(-0.0)}) {
    ExpectSaved(Make("a", view, value), options);
  }
  ExpectSaved(Make("b", view), options);
  ExpectSaved(Make("b", other_.view()), options);  // the same memory twice
  const TestTensor copy(DType::kUInt8, {8, kChunkBytes}, 5);
  ExpectSaved(Make("b", copy.view()), options);
  view.shape = {4, 2 * kChunkBytes};
  ExpectSaved(Make("b", view), options);
  view.dtype = DType::kInt8;
  ExpectSaved(Make("b", view), options);
  view.shape = {8, kChunkBytes / 2};
  view.strides = {kChunkBytes, 1};
  ExpectSaved(Make("b", view), options);
  for (const NodeKind kind : {NodeKind::kList, NodeKind::kTuple}) {
    StateDict state = Make("b", view);
    state.root().List("list", kind).Value("0", int64_t{1});
    ExpectSaved(state, options);
  }
}

TEST_F(RememberedPlanTest, ChangesOfLongValuesAreSaved) {
  const SaveOptions options{.chunk_bytes = kChunkBytes};
  const std::vector<std::byte> bytes(5'000, std::byte{'a'});
  for (const Value& value : {Value(std::string(5'000, 'a')), Value(std::string(5'000, 'b')),
                             Value(std::string(5'001, 'b')), Value(std::string("b")),
                             Value(std::string(5'000, 'a')), Value(Bytes{bytes})}) {
    for (const int64_t other : {1, 2}) {
      StateDict state = Make("a", tensor_.view(), other);
      state.root().Value("long", value);
      Save(++step_, state, options);
      CAIRN_ASSERT_OK_AND_ASSIGN(Contents contents, store->List(step_));
      CAIRN_ASSERT_OK(store->LoadValues(contents.step, contents.values));
      EXPECT_EQ(contents.values[0].value, value);
      EXPECT_EQ(contents.values[1].value, Value(other));
    }
  }
}

TEST_F(RememberedPlanTest, OptionsAreThoseOfEachSave) {
  const StateDict state = Make("a", tensor_.view());
  for (const std::vector<std::string>& unchanged :
       {std::vector<std::string>{"a"}, {"other"}, {}, {"**", "!a"}}) {
    ExpectSaved(state, {.unchanged = unchanged, .chunk_bytes = kChunkBytes});
  }
  ExpectSaved(state, {.chunk_bytes = 2 * kChunkBytes});
  EXPECT_THAT(store->Save(99, state, {.max_deltas = 1000, .chunk_bytes = 2 * kChunkBytes}),
              IsError(ErrorCode::kInvalidArgument, "max_deltas"));
  EXPECT_THAT(store->Save(99, state, {.chunk_bytes = 2 * kChunkBytes, .tags = {""}}),
              IsError(ErrorCode::kInvalidArgument, "tag"));
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
  CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{5, 4}));
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

class IncrementalSaveTest : public StoreTest {};

TEST_F(IncrementalSaveTest, OneChangedElementWritesOneChunk) {
  TestTensor a(DType::kFloat32, {1000, 100});
  const StateDict state = StateOf({{"a", a.view()}});
  Save(1, state, {.chunk_bytes = 10'000});
  a.bytes[123'456] ^= std::byte{1};
  const SaveReport second = Save(2, state, {.chunk_bytes = 10'000});
  EXPECT_EQ(second.chunks_reused, 39u);
  EXPECT_EQ(second.written_bytes, 10'000u);
  EXPECT_EQ(LoadBytes(2, "a"), a.bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(2), "a"));
  EXPECT_EQ(chunks[11].since_step, 1u);
  EXPECT_EQ(chunks[12].since_step, 2u);
}

TEST_F(IncrementalSaveTest, KeysMayComeAndGo) {
  const TestTensor a(DType::kInt32, {10}, 1), b(DType::kInt32, {10}, 2), c(DType::kInt32, {10}, 3);
  Save(1, StateOf({{"a", a.view()}, {"c", c.view()}}));
  const SaveReport report = Save(2, StateOf({{"b", b.view()}, {"c", c.view()}, {"d", a.view()}}));
  EXPECT_EQ(report.chunks_reused, 1u);
  for (const auto& [fqn, tensor] : {std::pair("b", &b), std::pair("c", &c), std::pair("d", &a)}) {
    EXPECT_EQ(LoadBytes(2, fqn), tensor->bytes);
  }
}

TEST_F(IncrementalSaveTest, AFewKeysAgainstALargeBase) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 200; ++i) tensors.emplace_back(DType::kInt32, Shape{4}, i);
  Save(1, NumberedState(tensors));
  const StateDict small = StateOf({{"t7", tensors[7].view()}, {"t100", tensors[101].view()}});
  const SaveReport report = Save(2, small);  // by lookups: 2 * 16 < 200
  EXPECT_EQ(report.chunks, 2u);
  EXPECT_EQ(report.chunks_reused, 1u);
  EXPECT_EQ(LoadBytes(2, "t100"), tensors[101].bytes);
}

TEST_F(IncrementalSaveTest, AnotherShapeOrGridIsWrittenAnew) {
  const TestTensor wide(DType::kInt32, {4, 100}), tall(DType::kInt32, {8, 50});
  const StateDict second = StateOf({{"t", tall.view()}});
  Save(1, StateOf({{"t", wide.view()}}));
  EXPECT_EQ(Save(2, second).chunks_reused, 0u);
  EXPECT_EQ(Save(3, second, {.chunk_bytes = 800}).chunks_reused, 0u);
  EXPECT_EQ(LoadBytes(3, "t"), tall.bytes);
}

TEST_F(IncrementalSaveTest, StridedSourcesAreComparedByValue) {
  const TestTensor matrix(DType::kFloat32, {60, 50});
  const TensorView view{DType::kFloat32, {50, 60}, {1, 50}, matrix.bytes.data()};
  const std::vector<std::byte> gathered = NaiveRowMajor(view);
  const TensorView plain{DType::kFloat32, {50, 60}, {}, gathered.data()};
  Save(1, StateOf({{"t", plain}}), {.chunk_bytes = 3000});
  const SaveReport second = Save(2, StateOf({{"t", view}}), {.chunk_bytes = 3000});
  EXPECT_EQ(second.chunks_reused, second.chunks);
}

}  // namespace
}  // namespace cairn::core
