// Tensors that share memory are stored once, and each can be loaded by its own name, completely or
// in boxes.

#include <fmt/format.h>

#include <map>

#include "core/load/load_options.h"
#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

class SharedStorageTest : public StoreTest {};

TEST_F(SharedStorageTest, TiedWeightsAreWrittenOnce) {
  const TestTensor weight(DType::kFloat32, {100, 50});
  const SaveReport report = Save(1, StateOf({{"wte", weight.view()}, {"lm_head", weight.view()}}));
  EXPECT_EQ(report.logical_bytes, 20'000u);
  EXPECT_EQ(report.written_bytes, 20'000u);
  EXPECT_EQ(LoadBytes(1, "wte"), weight.bytes);
  EXPECT_EQ(LoadBytes(1, "lm_head"), weight.bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TensorInfo wte, store->FindTensor(Step(1), "wte"));
  EXPECT_EQ(wte.alias_of, "lm_head");
  EXPECT_EQ(Step(1).tensor_count, 2u);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(SharedStorageTest, OverlappingTensorsWithoutACoveringOne) {
  const TestTensor storage(DType::kFloat32, {300});
  StateDict state;
  const TensorView a{DType::kFloat32, {200}, {}, storage.bytes.data()};
  const TensorView b{DType::kFloat64, {50, 2}, {}, storage.bytes.data() + 400};
  state.root().Tensor("a", a);
  state.root().Tensor("b", b);
  const SaveReport report = Save(1, state);
  EXPECT_EQ(report.written_bytes, 1200u);
  EXPECT_EQ(LoadBytes(1, "a"), NaiveRowMajor(a));
  EXPECT_EQ(LoadBytes(1, "b"), NaiveRowMajor(b));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  ASSERT_EQ(contents.tensors.size(), 3u);
  EXPECT_TRUE(contents.tensors[1].hidden);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto patterns, KeyPatterns::Parse({"b"}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents only_b, store->List(1, patterns));
  ASSERT_EQ(only_b.tensors.size(), 2u);  // b and what it needs
  EXPECT_EQ(only_b.tree.nodes.size(), 2u);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(SharedStorageTest, AHiddenTensorHasANameThatIsNotTaken) {
  const TestTensor storage(DType::kFloat32, {30}), other(DType::kFloat32, {1}, 2);
  const StateDict state = StateOf({{"a", {DType::kFloat32, {20}, {}, storage.bytes.data() + 40}},
                                   {"b", {DType::kFloat32, {20}, {}, storage.bytes.data()}},
                                   {"a.__storage__", other.view()}});
  Save(1, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TensorInfo taken, store->FindTensor(Step(1), "a.__storage__"));
  EXPECT_FALSE(taken.hidden);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TensorInfo hidden, store->FindTensor(Step(1), "a.__storage___"));
  EXPECT_TRUE(hidden.hidden);
  EXPECT_EQ(LoadBytes(1, "a"), NaiveRowMajor(state.tensors[0]));
}

TEST_F(SharedStorageTest, NeighboursAndTensorsWithoutElementsShareNothing) {
  const TestTensor storage(DType::kFloat32, {20});
  Save(1, StateOf({{"a", {DType::kFloat32, {10}, {}, storage.bytes.data() + 40}},
                   {"b", {DType::kFloat32, {10}, {}, storage.bytes.data()}},
                   {"c", {DType::kFloat32, {0, 3}, {}, storage.bytes.data()}}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  ASSERT_EQ(contents.tensors.size(), 3u);
  for (const TensorInfo& tensor : contents.tensors) EXPECT_FALSE(tensor.alias_of) << tensor.fqn;
}

TEST_F(SharedStorageTest, TensorsWithImpossibleStridesAreRefused) {
  const TestTensor storage(DType::kFloat32, {20});
  for (const auto& strides : {std::vector<uint64_t>{1, 1}, {uint64_t{1} << 63}}) {
    const auto saved =
        store->Save(1, StateOf({{"k", {DType::kFloat32, {3}, strides, storage.bytes.data()}}}));
    EXPECT_THAT(saved, testing::IsError(ErrorCode::kInvalidArgument,
                                        strides.size() == 2 ? "strides" : "address space"));
    EXPECT_EQ(saved.error().key, "k");
  }
}

TEST_F(SharedStorageTest, ATransposedViewOfTheOwner) {
  const TestTensor matrix(DType::kBFloat16, {300, 200});
  StateDict state = StateOf({{"m", matrix.view()}});
  const TensorView transposed{DType::kBFloat16, {200, 300}, {1, 200}, matrix.bytes.data()};
  state.root().Tensor("t", transposed);
  Save(1, state, {.chunk_bytes = 70'001});
  EXPECT_EQ(LoadBytes(1, "t"), NaiveRowMajor(transposed));
  // A box of it.
  TestTensor target(DType::kBFloat16, {3, 250}, 4);
  CAIRN_ASSERT_OK(Load(1, {{.fqn = "t", .box = {{100, 20}, {3, 250}}, .target = target.target()}}));
  const TensorView part{
      DType::kBFloat16, {3, 250}, {1, 200}, matrix.bytes.data() + (20 * 200 + 100) * 2};
  EXPECT_EQ(target.bytes, NaiveRowMajor(part));
}

TEST_F(SharedStorageTest, SharingIsFoundAgainByTheNextIncrementalSave) {
  TestTensor storage(DType::kUInt8, {400'000});
  const StateDict state =
      StateOf({{"a", {DType::kUInt8, {300'000}, {}, storage.bytes.data()}},
               {"b", {DType::kUInt8, {300'000}, {}, storage.bytes.data() + 100'000}}});
  Save(1, state, {.chunk_bytes = 100'000});
  storage.bytes[350'000] ^= std::byte{1};
  const SaveReport second = Save(2, state, {.chunk_bytes = 100'000});
  EXPECT_EQ(second.chunks, 4u);
  EXPECT_EQ(second.chunks_reused, 3u);
  EXPECT_EQ(LoadBytes(2, "b"),
            std::vector<std::byte>(storage.bytes.begin() + 100'000, storage.bytes.end()));
}

// Random views of one storage, many of them overlapping in every way, small odd chunks.
TEST_F(SharedStorageTest, RandomViewsOfOneStorage) {
  testing::SeededRandom random;
  for (uint64_t step = 1; step <= 25; ++step) {
    std::vector<std::byte> storage(random.Between(64, 6000));
    random.Fill(storage);
    std::map<std::string, TensorView> views;
    StateDict state;
    for (uint64_t i = 0, count = random.Between(1, 8); i < count; ++i) {
      const StridedTensor shape = RandomStrided(random, /*may_repeat=*/true);
      if (shape.memory.size() > storage.size()) continue;
      TensorView view = shape.view();
      view.data = storage.data() + random.Between(0, storage.size() - shape.memory.size());
      const std::string fqn = fmt::format("v{}", i);
      views.emplace(fqn, view);
      state.root().Tensor(fqn, view);
    }
    Save(step, state, {.chunk_bytes = random.Between(1, 700)});
    for (const auto& [fqn, view] : views) {
      ASSERT_EQ(LoadBytes(step, fqn), NaiveRowMajor(view)) << fqn << " of step " << step;
    }
  }
  EXPECT_TRUE(VerifyAll().empty());
}

}  // namespace
}  // namespace cairn::core
