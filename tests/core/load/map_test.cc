#include <fmt/format.h>

#include <set>

#include "core/load/load_options.h"
#include "kv/base/mapping.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

class MapTest : public StoreTest {
 protected:
  Result<std::optional<MappedTensor>> MapOne(uint64_t step, const std::string& fqn) {
    CAIRN_TRY_ASSIGN(const auto mapped, store->Map(Step(step), {&fqn, 1}));
    return mapped.front();
  }
};

TEST_F(MapTest, MapsATensorOfManyChunks) {
  const TestTensor tensor(DType::kFloat32, {500, 100});
  Save(1, StateOf({{"w", tensor.view()}}), {.chunk_bytes = 7000});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, MapOne(1, "w"));
  ASSERT_TRUE(mapped.has_value());
  EXPECT_TRUE(std::ranges::equal(mapped->bytes, tensor.bytes));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped->bytes.data()) % 64, 0u);
}

TEST_F(MapTest, ManyTensorsShareTheMappingOfTheirSegment) {
  const TestTensor layers(DType::kFloat32, {300, 5000});
  StateDict state;
  std::vector<std::string> fqns;
  for (int i = 0; i < 300; ++i) {
    fqns.push_back(fmt::format("layer{:03}", i));
    state.root().Tensor(fqns.back(),
                        {DType::kFloat32, {50, 100}, {}, layers.bytes.data() + i * 20'000});
  }
  Save(1, state);
  std::ranges::reverse(fqns);  // results are in the order of the request, not in key order
  fqns.push_back(fqns.front());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, store->Map(Step(1), fqns));
  ASSERT_EQ(mapped.size(), fqns.size());
  std::set<const kv::Mapping*> mappings;
  for (size_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(mapped[i].has_value());
    EXPECT_TRUE(std::ranges::equal(mapped[i]->bytes,
                                   std::span(layers.bytes).subspan((299 - i) * 20'000, 20'000)));
    mappings.insert(mapped[i]->mapping.get());
  }
  EXPECT_EQ(mappings.size(), 1u);
  EXPECT_EQ(mapped.back()->bytes.data(), mapped.front()->bytes.data());
}

TEST_F(MapTest, TheMappingOutlivesStepAndStore) {
  const TestTensor tensor(DType::kFloat32, {500, 100});
  Save(1, StateOf({{"w", tensor.view()}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, MapOne(1, "w"));
  CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{1}));
  store.reset();
  EXPECT_TRUE(std::ranges::equal(mapped->bytes, tensor.bytes));
}

TEST_F(MapTest, AWriteToALargeMapStaysInThisMapping) {
  const TestTensor tensor(DType::kInt8, {9, 1 << 20});
  Save(1, StateOf({{"w", tensor.view()}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, MapOne(1, "w"));
  ASSERT_TRUE(mapped.has_value());
  ASSERT_TRUE(std::ranges::equal(mapped->bytes, tensor.bytes));
  auto* const bytes = const_cast<std::byte*>(mapped->bytes.data());
  for (size_t i = 0; i < mapped->bytes.size(); i += 1'000'003) bytes[i] ^= std::byte{1};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto again, MapOne(1, "w"));
  EXPECT_TRUE(std::ranges::equal(again->bytes, tensor.bytes));
}

TEST_F(MapTest, NothingToMapWhereChunksAreScattered) {
  TestTensor tensor(DType::kFloat32, {500, 100});
  const StateDict state = StateOf({{"w", tensor.view()}});
  Save(1, state, {.chunk_bytes = 7000});
  tensor.bytes[50'000] ^= std::byte{1};
  Save(2, state, {.chunk_bytes = 7000});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, MapOne(2, "w"));
  EXPECT_FALSE(mapped.has_value());
}

TEST_F(MapTest, MapsContiguousAliasesAndNoOthers) {
  const TestTensor tensor(DType::kFloat32, {100, 100});
  Save(1,
       StateOf({{"owner", tensor.view()},
                {"rows", {DType::kFloat32, {10, 100}, {}, tensor.bytes.data() + 20'000}},
                {"column", {DType::kFloat32, {100}, {100}, tensor.bytes.data()}}}),
       {.chunk_bytes = 9000});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto rows, MapOne(1, "rows"));
  ASSERT_TRUE(rows.has_value());
  EXPECT_TRUE(std::ranges::equal(rows->bytes, std::span(tensor.bytes).subspan(20'000, 4000)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto column, MapOne(1, "column"));
  EXPECT_FALSE(column.has_value());
}

TEST_F(MapTest, AnEmptyTensorMapsToNoBytes) {
  Save(1, StateOf({{"e", {DType::kFloat32, {0, 4}, {}, nullptr}}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, MapOne(1, "e"));
  ASSERT_TRUE(mapped.has_value());
  EXPECT_TRUE(mapped->bytes.empty());
  EXPECT_THAT(MapOne(1, "x"), IsError(ErrorCode::kNotFound, "x"));
}

}  // namespace
}  // namespace cairn::core
