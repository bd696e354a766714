// Steps that are exported to safetensors files, and imported again.

#include "core/interop/safetensors/safetensors_export.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "core/interop/safetensors/safetensors_file.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsExportTest : public StoreTest {};

TEST_F(SafetensorsExportTest, OneFileHoldsEveryTensorInFull) {
  const TestTensor matrix(DType::kFloat32, {300, 200}), bytes(DType::kInt8, {7});
  StateDict state;
  auto model = state.root().Map("model");
  const TensorView column{DType::kFloat32, {300}, {200}, matrix.bytes.data() + 8};
  model.Tensor("a_bytes", bytes.view());
  model.Tensor("column", column);
  model.Tensor("matrix", matrix.view());
  model.Tensor("none", {DType::kFloat64, {0, 2}, {}, nullptr});
  state.root().Value("step", int64_t{1});
  Save(1, state, {.chunk_bytes = 10'000});
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const SafetensorsExportReport report,
                             ExportSafetensors(*store, contents, directory / "out/m.safetensors"));
  EXPECT_THAT(report.files, ElementsAre(directory / "out/m.safetensors"));
  EXPECT_EQ(report.tensors, 4u);
  EXPECT_EQ(report.bytes, matrix.bytes.size() + 1200 + 7);
  EXPECT_EQ(report.values_left_out, 1u);

  CAIRN_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(report.files[0]));
  std::map<std::string, SafetensorsTensor> tensors;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    tensors.emplace(tensor.name, tensor);
    if (!tensor.bytes.empty()) {
      const uint64_t address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
      EXPECT_EQ(address % schema::ElementBytes(tensor.dtype), 0u) << tensor.name;
    }
  }
  EXPECT_TRUE(std::ranges::equal(tensors.at("model.matrix").bytes, matrix.bytes));
  EXPECT_TRUE(std::ranges::equal(tensors.at("model.column").bytes, NaiveRowMajor(column)));
  EXPECT_TRUE(std::ranges::equal(tensors.at("model.a_bytes").bytes, bytes.bytes));
  EXPECT_EQ(tensors.at("model.none").shape, (Shape{0, 2}));
}

TEST_F(SafetensorsExportTest, LargeSelectionsBecomeShardsWithAnIndex) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 5; ++i) tensors.emplace_back(DType::kFloat32, Shape{1000}, i);
  StateDict state;
  for (int i = 0; i < 5; ++i) state.root().Tensor(fmt::format("t{}", i), tensors[i].view());
  Save(1, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const SafetensorsExportReport report,
      ExportSafetensors(*store, contents, directory / "out", {.max_shard_bytes = 8000}));
  EXPECT_THAT(report.files, ElementsAre(directory / "out/model-00001-of-00003.safetensors",
                                        directory / "out/model-00002-of-00003.safetensors",
                                        directory / "out/model-00003-of-00003.safetensors",
                                        directory / "out/model.safetensors.index.json"));
  std::ifstream index(report.files[3]);
  const std::string text((std::istreambuf_iterator<char>(index)), {});
  EXPECT_THAT(text, HasSubstr("\"total_size\": 20000"));
  EXPECT_THAT(text, HasSubstr("\"t4\": \"model-00003-of-00003.safetensors\""));

  // Import from all files at once.
  std::vector<SafetensorsFile> files;
  for (int i = 0; i < 3; ++i) {
    CAIRN_ASSERT_OK_AND_ASSIGN(SafetensorsFile file, SafetensorsFile::Open(report.files[i]));
    files.push_back(std::move(file));
  }
  Save(2, SafetensorsState(files));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(LoadBytes(2, fmt::format("t{}", i)), tensors[i].bytes);
  files.push_back(files[0]);
  EXPECT_THAT(store->Save(3, SafetensorsState(files)), IsError(ErrorCode::kInvalidArgument, "t0"));
}

TEST_F(SafetensorsExportTest, RefusesADTypeWithoutANameBeforeWritingAnything) {
  const TestTensor tensor(DType::kComplex128, {2}), fine(DType::kInt8, {2});
  StateDict state;
  state.root().Tensor("a", fine.view());
  state.root().Tensor("z", tensor.view());
  Save(1, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  EXPECT_THAT(ExportSafetensors(*store, contents, directory / "out/x.safetensors"),
              IsError(ErrorCode::kInvalidArgument, "z"));
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
}

}  // namespace
}  // namespace cairn::core
