// Saves and loads of complete states: every dtype, shape and kind of memory, and the errors.

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/checkpoint_store.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

class SaveLoadTest : public StoreTest {};

TEST_F(SaveLoadTest, EveryDTypeAndManyShapesComeBack) {
  const std::vector<Shape> shapes = {{}, {1}, {7}, {3, 5}, {0}, {4, 0, 2}, {2, 1, 3, 1}};
  std::vector<std::pair<std::string, TestTensor>> tensors;
  StateDict state;
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    for (size_t s = 0; s < shapes.size(); ++s) {
      tensors.emplace_back(fmt::format("{}.{}", info.name, s),
                           TestTensor(info.dtype, shapes[s], static_cast<uint8_t>(tensors.size())));
    }
  }
  for (const auto& [fqn, tensor] : tensors) state.root().Tensor(fqn, tensor.view());
  const SaveReport report = Save(1, state);
  EXPECT_EQ(report.logical_bytes, report.written_bytes);
  Reopen(kv::OpenMode::kRead);
  for (const auto& [fqn, tensor] : tensors) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const TensorInfo info, store->FindTensor(Step(1), fqn));
    EXPECT_EQ(info.dtype, tensor.dtype) << fqn;
    EXPECT_EQ(info.shape, tensor.shape) << fqn;
    EXPECT_EQ(LoadBytes(1, fqn), tensor.bytes) << fqn;
  }
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(SaveLoadTest, ManyChunksComeBackInPlace) {
  const TestTensor tensor(DType::kFloat32, {1000, 300});
  const SaveReport report = Save(1, StateOf({{"w", tensor.view()}}), {.chunk_bytes = 100'000});
  EXPECT_EQ(report.chunks, 13u);
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(1), "w"));
  ASSERT_EQ(chunks.size(), 13u);
  EXPECT_EQ(chunks[1].box, (Box{{83, 0}, {83, 300}}));
  EXPECT_EQ(chunks[12].since_step, 1u);
}

// In a segment, tensors of 64 KiB and more begin on pages of 4 KiB, others at multiples of 64
// bytes, and their chunks follow one another.
TEST_F(SaveLoadTest, TensorsAreAlignedByTheirLength) {
  constexpr uint64_t kChunkBytes = 16 << 10;
  std::vector<TestTensor> tensors;
  for (const uint64_t length : {8 * kChunkBytes, uint64_t{7}, 2 * kChunkBytes, 4 * kChunkBytes}) {
    tensors.emplace_back(DType::kUInt8, Shape{length});
  }
  Save(1, NumberedState(tensors), {.chunk_bytes = kChunkBytes});
  for (size_t i = 0; i < tensors.size(); ++i) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(1), fmt::format("t{}", i)));
    uint64_t offset_bytes = chunks.front().extents.front().offset_bytes;
    EXPECT_EQ(offset_bytes % (tensors[i].bytes.size() < 4 * kChunkBytes ? 64 : 4096), 0u) << i;
    for (const ChunkInfo& chunk : chunks) {
      EXPECT_EQ(chunk.extents.front().offset_bytes, offset_bytes) << i;
      offset_bytes += chunk.extents.length_bytes();
    }
  }
}

TEST_F(SaveLoadTest, StridedSourcesAndTargetsAgreeWithTheNaiveReference) {
  testing::SeededRandom random;
  for (uint64_t step = 1; step <= 40; ++step) {
    const StridedTensor source = RandomStrided(random, /*may_repeat=*/true);
    Save(step, StateOf({{"t", source.view()}}), {.chunk_bytes = random.Between(1, 400)});
    const auto expected = NaiveRowMajor(source.view());
    ASSERT_EQ(LoadBytes(step, "t"), expected);
    // Loads to memory of the same shape with other strides: dimensions in reverse order.
    StridedTensor target{.dtype = source.dtype, .shape = source.shape};
    target.strides.resize(target.shape.size());
    uint64_t stride = 1;
    for (size_t d = 0; d < target.shape.size(); ++d) {
      target.strides[d] = stride;
      stride *= target.shape[d];
    }
    target.memory.resize(expected.size());
    CAIRN_ASSERT_OK(
        Load(step, {{.fqn = "t", .box = WholeBox(source.shape), .target = target.target()}}));
    ASSERT_EQ(NaiveRowMajor(target.view()), expected);
  }
}

TEST_F(SaveLoadTest, ValuesAndTreeComeBack) {
  StateDict state;
  auto optimizer = state.root().Map("optimizer", NodeKind::kOrderedDict);
  optimizer.WithKeyKind(KeyKind::kInt).Value("0", int64_t{42});
  optimizer.Value("name", std::string("adamw"));
  state.root().List("none").Value("", std::monostate{});
  Save(3, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(3));
  EXPECT_EQ(contents.tree, state.tree);
  ASSERT_EQ(contents.values.size(), 3u);
  EXPECT_EQ(contents.values[0].fqn, "none.0");
  EXPECT_EQ(contents.values[1].value, Value(int64_t{42}));
  EXPECT_EQ(contents.step.value_count, 3u);
}

TEST_F(SaveLoadTest, AnEmptyStateIsAStep) {
  Save(0, StateDict());
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(0));
  EXPECT_EQ(contents.tree, StateDict().tree);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(SaveLoadTest, ABareTensorIsAState) {
  const TestTensor tensor(DType::kInt16, {3});
  StateDict state;
  state.tree.nodes = {{.kind = NodeKind::kTensor}};
  state.tensors = {tensor.view()};
  state.slot = {0};
  Save(1, state);
  EXPECT_EQ(LoadBytes(1, ""), tensor.bytes);
}

TEST_F(SaveLoadTest, TwentyThousandSmallTensors) {
  std::vector<TestTensor> tensors(20'000, TestTensor(DType::kInt64, {3}));
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::memcpy(tensors[i].bytes.data(), &i, sizeof(i));
  }
  Save(1, NumberedState(tensors));
  std::vector<TestTensor> loaded(tensors.size(), TestTensor(DType::kInt64, {3}, 9));
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < loaded.size(); ++i) {
    requests.push_back(WholeRequest(fmt::format("t{}", i), loaded[i]));
  }
  CAIRN_ASSERT_OK(store->Load(Step(1), requests));
  for (size_t i = 0; i < loaded.size(); ++i) ASSERT_EQ(loaded[i].bytes, tensors[i].bytes) << i;
}

TEST_F(SaveLoadTest, MissingKeyIsNamedWithItsLikes) {
  const TestTensor tensor(DType::kInt8, {2});
  Save(1, StateOf({{"model.layers.0.weight", tensor.view()}}));
  TestTensor target(DType::kInt8, {2});
  const auto load = [&](const std::string& fqn) { return Load(1, {WholeRequest(fqn, target)}); };
  EXPECT_THAT(load("model.layers.1.weight"),
              IsError(ErrorCode::kNotFound, "similar keys: model.layers.0.weight"));
  EXPECT_THAT(load("model.layers.1.weight"),
              IsError(ErrorCode::kNotFound, "model.layers.1.weight"));
  EXPECT_THAT(load("zzz"), IsError(ErrorCode::kNotFound, "; its first keys: "));
  EXPECT_THAT(load(std::string("a\0b", 3)), IsError(ErrorCode::kNotFound, ""));
}

TEST_F(SaveLoadTest, NothingIsTouchedWhenOneRequestIsWrong) {
  const TestTensor a(DType::kFloat32, {4}), b(DType::kFloat32, {4});
  Save(1, StateOf({{"a", a.view()}, {"b", b.view()}}));
  TestTensor fine(DType::kFloat32, {4}, 50);
  const auto before = fine.bytes;
  const auto load_with = [&](LoadRequest bad) {
    const std::vector<LoadRequest> requests = {WholeRequest("a", fine), std::move(bad)};
    return store->Load(Step(1), requests);
  };
  TestTensor half(DType::kBFloat16, {4}), longer(DType::kFloat32, {5}), ok(DType::kFloat32, {4});
  EXPECT_THAT(
      load_with(WholeRequest("b", half)),
      IsError(ErrorCode::kInvalidArgument, "the target is bfloat16, the stored tensor float32"));
  EXPECT_THAT(load_with(WholeRequest("b", longer)),
              IsError(ErrorCode::kInvalidArgument, "leaves the stored shape [4]"));
  LoadRequest wrong_shape = WholeRequest("b", ok);
  wrong_shape.box.sizes = {3};
  EXPECT_THAT(load_with(wrong_shape), IsError(ErrorCode::kInvalidArgument, "box sizes [3]"));
  LoadRequest no_memory = WholeRequest("b", ok);
  no_memory.target.data = nullptr;
  EXPECT_THAT(load_with(no_memory), IsError(ErrorCode::kInvalidArgument, "no memory"));
  LoadRequest bad_strides = WholeRequest("b", ok);
  bad_strides.target.strides = {1, 1};
  EXPECT_THAT(load_with(bad_strides), IsError(ErrorCode::kInvalidArgument, "stride"));
  LoadRequest missing = WholeRequest("c", ok);
  EXPECT_THAT(load_with(missing), IsError(ErrorCode::kNotFound, "c"));
  EXPECT_EQ(fine.bytes, before);
}

TEST_F(SaveLoadTest, RefusesBadStatesByKeyAndKeepsTheStore) {
  const TestTensor tensor(DType::kFloat32, {4});
  StateDict duplicate = StateOf({{"a.b", tensor.view()}});
  duplicate.root().Map("a").Tensor("b", tensor.view());
  EXPECT_THAT(store->Save(1, duplicate), IsError(ErrorCode::kInvalidArgument, "a.b"));
  EXPECT_THAT(store->Save(1, StateOf({{"n", {.dtype = DType::kFloat32, .shape = {4}}}})),
              IsError(ErrorCode::kInvalidArgument, "n"));
  EXPECT_THAT(store->Save(1, StateOf({{"u", {.dtype = DType::kUnknown, .shape = {}}}})),
              IsError(ErrorCode::kInvalidArgument, "u"));
  StateDict large;
  large.root().Value("v", BigInt{std::vector<std::byte>(kMaxInlineValueBytes + 1)});
  EXPECT_THAT(store->Save(1, large), IsError(ErrorCode::kInvalidArgument, "v"));
  StateDict more_leaves = StateOf({{"w", tensor.view()}});
  more_leaves.slot.push_back(0);
  EXPECT_THAT(store->Save(1, more_leaves), IsError(ErrorCode::kInvalidArgument, "contents for 2"));
  more_leaves.slot = {1};
  EXPECT_THAT(store->Save(1, more_leaves),
              IsError(ErrorCode::kInvalidArgument, "contents that it lacks"));
  const StateDict good = StateOf({{"g", tensor.view()}});
  EXPECT_THAT(store->Save(1, good, {.chunk_bytes = 0}),
              IsError(ErrorCode::kInvalidArgument, "chunk_bytes"));
  EXPECT_THAT(store->Save(1, good, {.chunk_bytes = uint64_t{1} << 40}),
              IsError(ErrorCode::kInvalidArgument, "chunk_bytes"));
  EXPECT_THAT(store->Save(1, good, {.base_step = 77}), IsError(ErrorCode::kNotFound, ""));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->Steps());
  EXPECT_TRUE(steps.empty());
  Save(1, good);
}

TEST_F(SaveLoadTest, StepsShareTheBytesOfLongValues) {
  const Value text = std::string(100'000, 'x');
  const Value short_text = std::string(kMaxInlineValueBytes, 'y');
  const TestTensor tensor(DType::kFloat32, {4});
  StateDict state = StateOf({{"w", tensor.view()}});
  state.root().Value("text", text);
  state.root().Value("short", short_text);
  Save(1, state);
  EXPECT_EQ(Save(2, state).written_bytes, 0);

  CAIRN_ASSERT_OK_AND_ASSIGN(Contents contents, store->List(2));
  ASSERT_EQ(contents.values.size(), 2);
  EXPECT_EQ(contents.values[0].value, short_text);
  EXPECT_EQ(FormatValue(contents.values[1].value), "<str, 100000 bytes>");
  EXPECT_EQ(contents.step.tensor_count, 1);
  EXPECT_EQ(contents.step.value_count, 2);
  StateDict not_loaded = StateOf({{"w", tensor.view()}});
  not_loaded.root().Value("text", contents.values[1].value);
  EXPECT_THAT(store->Save(3, not_loaded), IsError(ErrorCode::kInvalidArgument, "text"));
  CAIRN_ASSERT_OK(store->LoadValues(contents.step, contents.values));
  EXPECT_EQ(contents.values[1].value, text);

  Save(3, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(Contents first, store->List(1));
  CAIRN_ASSERT_OK(store->LoadValues(first.step, first.values));
  Save(4, state);
  EXPECT_EQ(Step(4).parent->step, 1u);

  // The name of a hidden tensor is not that of a tensor.
  CAIRN_ASSERT_OK_AND_ASSIGN(const KeyPatterns pattern, KeyPatterns::Parse({"text"}));
  CAIRN_ASSERT_OK_AND_ASSIGN(contents, store->List(2, pattern));
  ASSERT_EQ(contents.values.size(), 1);
  EXPECT_TRUE(contents.tensors.front().hidden);
}

TEST_F(SaveLoadTest, AnExistingStepIsKeptUnlessOverwritten) {
  const TestTensor old_tensor(DType::kFloat32, {400}, 1), new_tensor(DType::kFloat32, {400}, 2);
  const StateDict old_state = StateOf({{"w", old_tensor.view()}});
  StateDict new_state = StateOf({{"w", new_tensor.view()}});
  new_state.root().Value("more", true);
  Save(5, old_state);
  EXPECT_THAT(store->Save(5, new_state), IsError(ErrorCode::kConflict, "5"));
  EXPECT_EQ(LoadBytes(5, "w"), old_tensor.bytes);
  Save(5, new_state, {.overwrite = true});
  EXPECT_EQ(LoadBytes(5, "w"), new_tensor.bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->Steps());
  EXPECT_EQ(steps.size(), 1u);
  // The same bytes again: the base is the step that is replaced.
  const SaveReport again = Save(5, new_state, {.overwrite = true});
  EXPECT_EQ(again.written_bytes, 0u);
  EXPECT_EQ(LoadBytes(5, "w"), new_tensor.bytes);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(SaveLoadTest, AReaderRefusesToWrite) {
  Save(1, StateDict());
  Reopen(kv::OpenMode::kRead);
  EXPECT_THAT(store->Save(2, StateDict()), IsError(ErrorCode::kFailedPrecondition, ""));
}

TEST_F(SaveLoadTest, AReaderSeesStepsThatCameAfterItsOpen) {
  const TestTensor tensor(DType::kFloat32, {4});
  const StateDict state = StateOf({{"w", tensor.view()}});
  Save(1, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader,
                             CheckpointStore::Open(directory / "store", kv::OpenMode::kRead));
  Save(2, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, reader->List({}));
  EXPECT_EQ(contents.step.step, 2u);
}

TEST_F(SaveLoadTest, ADeletedStepIsReadDuringTheGracePeriodAndNotFoundAfterIt) {
  const TestTensor tensor(DType::kFloat32, {4});
  Save(1, StateOf({{"w", tensor.view()}}));
  const kv::StepInfo info = Step(1);
  CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{1}));
  TestTensor target(DType::kFloat32, {4});
  const LoadRequest request = WholeRequest("w", target);
  CAIRN_ASSERT_OK(store->Load(info, {&request, 1})) << "during the grace period";
  EXPECT_EQ(target.bytes, tensor.bytes);

  store.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(store, CheckpointStore::Open(directory / "store", kv::OpenMode::kWrite,
                                                          {.grace = std::chrono::milliseconds(0)}));
  EXPECT_THAT(store->Load(info, {&request, 1}), IsError(ErrorCode::kNotFound, "deleted"));
}

TEST_F(SaveLoadTest, CancellingASaveLeavesNoStep) {
  const TestTensor tensor(DType::kFloat32, {1000, 1000});
  const StateDict state = StateOf({{"w", tensor.view()}});
  uint64_t calls = 0;
  const SaveOptions options{.chunk_bytes = 100'000, .progress = [&](uint64_t done, uint64_t total) {
                              EXPECT_LE(done, total);
                              ++calls;
                              return false;
                            }};
  EXPECT_THAT(store->Save(1, state, options), IsError(ErrorCode::kCancelled, ""));
  EXPECT_EQ(calls, 1u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->Steps());
  EXPECT_TRUE(steps.empty());
  EXPECT_TRUE(std::filesystem::is_empty(directory / "store/segments"));
  Save(1, state);
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
}

TEST_F(SaveLoadTest, ProgressEndsAtTheTotal) {
  const TestTensor tensor(DType::kFloat32, {1000, 1000});
  const StateDict state = StateOf({{"w", tensor.view()}});
  uint64_t last = 0;
  const auto progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 4'000'000u);
    last = done;
    return true;
  };
  Save(1, state, {.progress = progress});
  EXPECT_EQ(last, 4'000'000u);
  last = 0;
  TestTensor target(DType::kFloat32, {1000, 1000}, 3);
  CAIRN_ASSERT_OK(store->Load(Step(1), std::array{WholeRequest("w", target)}, progress));
  EXPECT_EQ(last, 4'000'000u);
}

// Memory that begins on a page is written directly; other payload passes through blocks.
TEST_F(SaveLoadTest, PageAlignedMemoryBetweenSmallTensors) {
  constexpr uint64_t kArenaBytes = 12 << 20;
  const std::unique_ptr<std::byte, decltype(&std::free)> arena(
      static_cast<std::byte*>(std::aligned_alloc(4096, kArenaBytes)), &std::free);
  const TestTensor pattern(DType::kUInt8, {kArenaBytes}, 3);
  std::ranges::copy(pattern.bytes, arena.get());
  const TestTensor small(DType::kUInt8, {1001});
  const uint64_t lengths[] = {6'000'000, 300'001, 262'144, 4 << 20};
  for (const uint64_t chunk_bytes : {kDefaultChunkBytes, uint64_t{1'000'000}}) {
    StateDict state;
    uint64_t at = 0;
    for (const uint64_t length : lengths) {
      state.root().Tensor(fmt::format("{}.large", at),
                          {DType::kUInt8, {length}, {}, arena.get() + at});
      state.root().Tensor(fmt::format("{}.small", at), small.view());
      at += (length + 4095) / 4096 * 4096;
    }
    const uint64_t step = chunk_bytes;
    Save(step, state, {.incremental = false, .chunk_bytes = chunk_bytes});
    at = 0;
    for (const uint64_t length : lengths) {
      const auto loaded = LoadBytes(step, fmt::format("{}.large", at));
      EXPECT_TRUE(std::ranges::equal(loaded, std::span(arena.get() + at, length))) << at;
      EXPECT_EQ(LoadBytes(step, fmt::format("{}.small", at)), small.bytes);
      at += (length + 4095) / 4096 * 4096;
    }
  }
  EXPECT_TRUE(VerifyAll().empty());
}

}  // namespace
}  // namespace cairn::core
