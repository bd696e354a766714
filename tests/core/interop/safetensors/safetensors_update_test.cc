// Files with what changed between two steps.

#include "core/interop/safetensors/safetensors_update.h"

#include <algorithm>
#include <map>

#include "core/interop/safetensors/safetensors_file.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

class SafetensorsUpdateTest : public StoreTest {
 protected:
  Result<SafetensorsUpdateReport> Export(uint64_t since, uint64_t step, bool sparse) {
    CAIRN_TRY_ASSIGN(const Contents contents, store->List(step));
    return ExportSafetensorsUpdate(*store, since, contents, path(), {.sparse = sparse});
  }
  std::string path() { return directory.path() + "/update.safetensors"; }
};

// The tensors of a file, by name.
std::map<std::string, std::vector<std::byte>> Tensors(const SafetensorsFile& file) {
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    tensors[tensor.name].assign(tensor.bytes.begin(), tensor.bytes.end());
  }
  return tensors;
}

TEST_F(SafetensorsUpdateTest, ASparseUpdateHasPositionsAndValues) {
  TestTensor few(DType::kInt16, {3, 1000}), many(DType::kFloat32, {50}), same(DType::kInt8, {7});
  const TestTensor gone(DType::kInt8, {2});
  Save(1, StateOf({{"few", few.view()},
                   {"gone", gone.view()},
                   {"many", many.view()},
                   {"same", same.view()}}));
  for (const size_t element : {5, 2999}) few.bytes[2 * element] ^= std::byte{1};
  for (std::byte& byte : many.bytes) byte ^= std::byte{1};
  Save(2, StateOf({{"few", few.view()}, {"many", many.view()}, {"same", same.view()}}));

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Export(1, 2, /*sparse=*/true));
  EXPECT_EQ(report.sparse_tensors, 1u);
  EXPECT_EQ(report.changed_elements, 2u);
  EXPECT_EQ(report.complete_tensors, 1u);
  EXPECT_EQ(report.removed_keys, 1u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path()));
  auto tensors = Tensors(file);
  EXPECT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors["many"], many.bytes);
  const std::array<uint32_t, 2> positions = {5, 2999};
  EXPECT_TRUE(std::ranges::equal(tensors["few.indices"], std::as_bytes(std::span(positions))));
  const std::vector<std::byte> values = {few.bytes[10], few.bytes[11], few.bytes[5998],
                                         few.bytes[5999]};
  EXPECT_EQ(tensors["few.values"], values);
  EXPECT_EQ(file.metadata().at("cairn.since"), "1");
  EXPECT_EQ(file.metadata().at("cairn.removed"), R"(["gone"])");
  EXPECT_EQ(file.metadata().at("cairn.sparse"), R"({"few":[3,1000]})");

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto complete, Export(1, 2, /*sparse=*/false));
  EXPECT_EQ(complete.complete_tensors, 2u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto second, SafetensorsFile::Open(path()));
  EXPECT_EQ(Tensors(second)["few"], few.bytes);
}

TEST_F(SafetensorsUpdateTest, TensorsOfAnotherShapeOrDtypeAreComplete) {
  const TestTensor flat(DType::kInt16, {6}), deep(DType::kInt16, {2, 3}), wide(DType::kInt32, {3});
  Save(1, StateOf({{"a", flat.view()}, {"b", flat.view()}}));
  Save(2, StateOf({{"a", deep.view()}, {"b", wide.view()}, {"c", flat.view()}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Export(1, 2, /*sparse=*/true));
  EXPECT_EQ(report.sparse_tensors, 0u);
  EXPECT_EQ(report.complete_tensors, 3u);
}

TEST_F(SafetensorsUpdateTest, RefusesWhatTheFormatCannotExpress) {
  const TestTensor before(DType::kBits8, {4}), after(DType::kBits8, {4}, /*seed=*/2);
  Save(1, StateOf({{"w", before.view()}}));
  Save(2, StateOf({{"w", after.view()}}));
  EXPECT_THAT(Export(1, 2, false), IsError(ErrorCode::kInvalidArgument, "bits8"));
  EXPECT_THAT(Export(7, 2, false), IsError(ErrorCode::kNotFound, "7"));
}

}  // namespace
}  // namespace cairn::core
