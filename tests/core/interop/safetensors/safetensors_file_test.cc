// Files that are written, read back, and refused; headers as hostile input, with one defect each.

#include "core/interop/safetensors/safetensors_file.h"

#include <fmt/format.h>

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
  // A file with this header, followed by bytes.
  Result<SafetensorsFile> Open(const std::string& json, uint64_t data_bytes) {
    return SafetensorsFile::Open(Write(WithLength(json.size(), json + std::string(data_bytes, 0))));
  }
  // The header of a file that the writer has written with these entries, without its length.
  std::string Header(const std::vector<SafetensorsEntry>& entries,
                     const std::map<std::string, std::string>& metadata = {}) {
    const std::string path = directory_ / "written.safetensors";
    const auto finish = [&]() -> Result<void> {
      CAIRN_TRY_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries, metadata));
      for (const SafetensorsEntry& entry : entries) {
        CAIRN_TRY(writer->Append(std::vector<std::byte>(*TensorBytes(entry.dtype, entry.shape))));
      }
      return writer->Finish();
    };
    EXPECT_TRUE(cairn::testing::IsOk(finish()));
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    return bytes.substr(8, schema::GetLittleEndian<uint64_t>(std::as_bytes(std::span(bytes))));
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

TEST_F(SafetensorsFileTest, ReadsTensorsAndMetadata) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto file, Open(R"({"__metadata__":{"format":"pt"},
               "b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},
               "a":{"data_offsets":[0,4],"shape":[],"dtype":"I32"}}   )",
                                                   20));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].dtype, DType::kFloat32);
  EXPECT_EQ(file.tensors()[1].shape, (Shape{2, 2}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST_F(SafetensorsFileTest, FilesAndTensorsMayBeEmpty) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto file, Open("{}", 0));
  EXPECT_TRUE(file.tensors().empty());
  CAIRN_EXPECT_OK(Open(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
                           "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                       4));
}

TEST_F(SafetensorsFileTest, HalvesTheLastDimensionOf4BitFloats) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto file,
                             Open(R"({"a":{"dtype":"F4","shape":[3,4],"data_offsets":[0,6]}})", 6));
  EXPECT_EQ(file.tensors()[0].shape, (Shape{3, 2}));
}

struct BadHeader {
  const char* json;
  uint64_t data_bytes;
  const char* why;
  ErrorCode code = ErrorCode::kDataLoss;
};
class BadHeaderTest : public SafetensorsFileTest,
                      public ::testing::WithParamInterface<BadHeader> {};

TEST_P(BadHeaderTest, IsRefused) {
  const BadHeader& bad = GetParam();
  EXPECT_THAT(Open(bad.json, bad.data_bytes), IsError(bad.code, bad.why));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadHeaderTest,
    ::testing::Values(
        BadHeader{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                      "b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                  3, "hole"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                      "b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                  3, "overlap"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3,
                  "1 bytes follow the last tensor"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "extend beyond"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2, "extend beyond"},
        BadHeader{R"({"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, "agree"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "agree"},
        BadHeader{R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "whole bytes"},
        BadHeader{R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3, "F6_E2M3",
                  ErrorCode::kUnimplemented},
        BadHeader{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                      "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                  1, "'a' twice"}));

class HostileJsonTest : public SafetensorsFileTest,
                        public ::testing::WithParamInterface<const char*> {};

TEST_P(HostileJsonTest, IsRefused) {
  EXPECT_THAT(Open(GetParam(), 4), IsError(ErrorCode::kDataLoss, "header"));
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileJsonTest,
    ::testing::Values("", "[]", "null", " {}", "{", "{}{}", "{\"a\":1}", "{\"a\":{}}",
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}",
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}",
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}",
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}",
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}",
                      "{\"a\":{\"dtype\":[\"F32\"],\"shape\":[1],\"data_offsets\":[0,4]}}",
                      "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1]}}",
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],"
                      "\"data_offsets\":[0,4]}}",
                      "{\"__metadata__\":{\"a\":{}}}", "{\"__metadata__\":{\"a\":1}}",
                      "{\"__metadata__\":[]}", "{\"a\xff\":{}}"));

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
  for (const Shape& shape : {Shape{}, Shape{0, uint64_t{1} << 63}}) {
    EXPECT_THAT(create({{"k", DType::kFloat4E2M1FNx2, shape}}),
                IsError(ErrorCode::kInvalidArgument, "4-bit"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(SafetensorsFileTest, RefusesDeepNestingAtOnce) {
  EXPECT_THAT(Open("{\"a\":" + std::string(1'000'000, '['), 0),
              IsError(ErrorCode::kDataLoss, "list"));
}

// The bytes are compared, because other programs compare checksums of whole files.
TEST_F(SafetensorsFileTest, WritesTheMetadataAndThenTheEntriesInTheirOrder) {
  EXPECT_EQ(Header({}), "{}      ");
  EXPECT_EQ(Header({}, {{"format", "pt"}}), R"({"__metadata__":{"format":"pt"}})");
  EXPECT_EQ(
      Header({{"b", DType::kFloat32, {2, 3}}, {"a", DType::kInt8, {}}}, {{"z", "1"}, {"k", ""}}),
      R"({"__metadata__":{"k":"","z":"1"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a":{"dtype":"I8","shape":[],"data_offsets":[24,25]}}  )");
}

TEST_F(SafetensorsFileTest, EscapesNamesAndPadsToAMultipleOfEightBytes) {
  EXPECT_THAT(Header({{"\"\\\n\x01/\xc3\xa9\x7f", DType::kInt8, {0}}}),
              ::testing::StartsWith("{\"\\\"\\\\\\n\\u0001/\xc3\xa9\x7f\":{\"dtype\":\"I8\""));
  for (size_t length = 1; length < 20; ++length) {
    EXPECT_EQ(Header({{std::string(length, 'x'), DType::kInt8, {1}}}).size() % 8, 0u) << length;
  }
}

// With a cost per key that grew with the number of keys this would take minutes.
TEST_F(SafetensorsFileTest, WritesAHundredThousandTensors) {
  std::vector<SafetensorsEntry> entries;
  for (int i = 0; i < 100'000; ++i) {
    entries.push_back({fmt::format("model.layers.{}.weight", i), DType::kBFloat16, {0, 2}});
  }
  EXPECT_GT(Header(entries).size(), 5'000'000u);
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
