// Repeated saves: unchanged chunks become references.

#include <fmt/format.h>

#include "core/save/save_options.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

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
  const StateDict first = StateOf({{"a", a.view()}, {"c", c.view()}});
  const StateDict second = StateOf({{"b", b.view()}, {"c", c.view()}, {"d", a.view()}});
  Save(1, first);
  const SaveReport report = Save(2, second);
  EXPECT_EQ(report.chunks_reused, 1u);
  for (const auto& [fqn, tensor] : {std::pair("b", &b), std::pair("c", &c), std::pair("d", &a)}) {
    EXPECT_EQ(LoadBytes(2, fqn), tensor->bytes);
  }
}

TEST_F(IncrementalSaveTest, AFewKeysAgainstALargeBase) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 200; ++i) tensors.emplace_back(DType::kInt32, Shape{4}, i);
  StateDict large, small;
  for (int i = 0; i < 200; ++i) large.root().Tensor(fmt::format("t{:03}", i), tensors[i].view());
  small.root().Tensor("t007", tensors[7].view());
  small.root().Tensor("t100", tensors[101].view());
  Save(1, large);
  const SaveReport report = Save(2, small);  // by lookups: 2 * 16 < 200
  EXPECT_EQ(report.chunks, 2u);
  EXPECT_EQ(report.chunks_reused, 1u);
  EXPECT_EQ(LoadBytes(2, "t100"), tensors[101].bytes);
}

TEST_F(IncrementalSaveTest, AnotherShapeOrGridIsWrittenAnew) {
  const TestTensor wide(DType::kInt32, {4, 100}), tall(DType::kInt32, {8, 50});
  const StateDict first = StateOf({{"t", wide.view()}});
  const StateDict second = StateOf({{"t", tall.view()}});
  Save(1, first);
  EXPECT_EQ(Save(2, second).chunks_reused, 0u);
  EXPECT_EQ(Save(3, second, {.chunk_bytes = 800}).chunks_reused, 0u);
  EXPECT_EQ(LoadBytes(3, "t"), tall.bytes);
}

TEST_F(IncrementalSaveTest, StridedSourcesAreComparedByValue) {
  const TestTensor matrix(DType::kFloat32, {60, 50});
  StateDict plain, transposed;
  const TensorView view{DType::kFloat32, {50, 60}, {1, 50}, matrix.bytes.data()};
  const std::vector<std::byte> gathered = NaiveRowMajor(view);
  plain.root().Tensor("t", {DType::kFloat32, {50, 60}, {}, gathered.data()});
  transposed.root().Tensor("t", view);
  Save(1, plain, {.chunk_bytes = 3000});
  const SaveReport second = Save(2, transposed, {.chunk_bytes = 3000});
  EXPECT_EQ(second.chunks_reused, second.chunks);
}

}  // namespace
}  // namespace cairn::core
