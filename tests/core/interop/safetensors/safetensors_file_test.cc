// Files that are written, read back, and refused.

#include "core/interop/safetensors/safetensors_file.h"

#include <filesystem>
#include <fstream>

#include "core/interop/safetensors/safetensors_writer.h"
#include "schema/little_endian.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;

class SafetensorsFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    const std::string path = directory_ / "file.safetensors";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  static std::string WithLength(uint64_t length, const std::string& rest) {
    std::string bytes;
    schema::AppendLittleEndian(bytes, length);
    return bytes + rest;
  }
  ScopedTempDir directory_;
};

TEST_F(SafetensorsFileTest, RefusesFilesThatAreTooShort) {
  EXPECT_THAT(SafetensorsFile::Open(Write("")), IsError(ErrorCode::kDataLoss, "too short"));
  EXPECT_THAT(SafetensorsFile::Open(Write("1234567")), IsError(ErrorCode::kDataLoss, "too short"));
  EXPECT_THAT(SafetensorsFile::Open(directory_ / "none"), IsError(ErrorCode::kNotFound, "none"));
  EXPECT_FALSE(SafetensorsFile::Open(directory_.path()));
}

TEST_F(SafetensorsFileTest, RefusesAHeaderLongerThanTheFile) {
  EXPECT_THAT(SafetensorsFile::Open(Write(WithLength(3, "{}"))),
              IsError(ErrorCode::kDataLoss, "header of 3 bytes"));
  EXPECT_THAT(SafetensorsFile::Open(Write(WithLength(~uint64_t{0}, "{}"))),
              IsError(ErrorCode::kDataLoss, "header of"));
}

TEST_F(SafetensorsFileTest, RefusesAHeaderAboveTheLimitOfTheFormat) {
  const std::string path = Write(WithLength(kMaxSafetensorsHeaderBytes + 1, "{}"));
  std::filesystem::resize_file(path, kMaxSafetensorsHeaderBytes + 100);  // sparse
  EXPECT_THAT(SafetensorsFile::Open(path), IsError(ErrorCode::kDataLoss, "header of 100000001"));
}

TEST_F(SafetensorsFileTest, RoundTripsEveryDTypeThatHasAName) {
  std::vector<TestTensor> tensors;
  std::vector<SafetensorsWriter::Entry> entries;
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    if (!SafetensorsName(info.dtype)) continue;
    tensors.emplace_back(info.dtype, Shape{2, 3}, static_cast<uint8_t>(tensors.size()));
    entries.push_back({std::string(info.name), info.dtype, {2, 3}});
  }
  ASSERT_EQ(entries.size(), 20u);
  const std::string path = directory_ / "all.safetensors";
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries));
  for (const TestTensor& tensor : tensors) CAIRN_ASSERT_OK(writer->Append(tensor.bytes));
  CAIRN_ASSERT_OK(writer->Finish());

  CAIRN_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file.tensors()[i].name, entries[i].name);
    EXPECT_EQ(file.tensors()[i].dtype, tensors[i].dtype);
    EXPECT_EQ(file.tensors()[i].shape, tensors[i].shape);
    EXPECT_TRUE(std::ranges::equal(file.tensors()[i].bytes, tensors[i].bytes));
  }
}

TEST_F(SafetensorsFileTest, WriterRefusesWhatTheFormatCannotExpress) {
  const std::string path = directory_ / "x.safetensors";
  const auto create = [&](std::vector<SafetensorsWriter::Entry> entries) {
    return SafetensorsWriter::Create(path, entries);
  };
  EXPECT_THAT(create({{"k", DType::kComplex128, {1}}}),
              IsError(ErrorCode::kInvalidArgument, "complex128"));
  EXPECT_THAT(create({{"k", DType::kInt8, {1}}, {"k", DType::kInt8, {1}}}),
              IsError(ErrorCode::kInvalidArgument, "k"));
  EXPECT_THAT(create({{"\xff", DType::kInt8, {1}}}), IsError(ErrorCode::kInvalidArgument, "UTF-8"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(SafetensorsFileTest, AnUnfinishedFileLeavesNothing) {
  const std::string path = directory_ / "x.safetensors";
  {
    const std::vector<SafetensorsWriter::Entry> entries = {{"k", DType::kInt8, {4}}};
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries));
    CAIRN_ASSERT_OK(writer->Append(std::vector<std::byte>(2)));
    EXPECT_THAT(writer->Finish(), IsError(ErrorCode::kInvalidArgument, "missing"));
    EXPECT_THAT(writer->Append(std::vector<std::byte>(3)),
                IsError(ErrorCode::kInvalidArgument, "left"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

}  // namespace
}  // namespace cairn::core
