// One damaged thing a test: the header is hostile input.

#include "core/interop/safetensors/safetensors.h"

#include <filesystem>
#include <fstream>

#include "core/interop/safetensors/internal/safetensors_header.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Result<internal::SafetensorsHeader> Parse(const std::string& json, uint64_t data_bytes) {
  return internal::ParseSafetensorsHeader(json, data_bytes);
}

TEST(SafetensorsHeaderTest, ReadsTensorsAndMetadata) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto header, Parse(R"({"__metadata__":{"format":"pt"},
               "b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},
               "a":{"data_offsets":[0,4],"shape":[],"dtype":"I32"}}   )",
                                                      20));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].dtype, DType::kFloat32);
  EXPECT_EQ(header.tensors[1].shape, (Shape{2, 2}));
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(SafetensorsHeaderTest, AnEmptyFileIsFine) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto header, Parse("{}", 0));
  EXPECT_TRUE(header.tensors.empty());
}

TEST(SafetensorsHeaderTest, TensorsWithoutElementsTakeNoBytes) {
  CAIRN_EXPECT_OK(Parse(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
                            "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                        4));
}

TEST(SafetensorsHeaderTest, HalvesTheLastDimensionOf4BitFloats) {
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto header, Parse(R"({"a":{"dtype":"F4","shape":[3,4],"data_offsets":[0,6]}})", 6));
  EXPECT_EQ(header.tensors[0].shape, (Shape{3, 2}));
  EXPECT_THAT(Parse(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2),
              IsError(ErrorCode::kDataLoss, "whole bytes"));
}

TEST(SafetensorsHeaderTest, RefusesAHole) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                        "b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                    3),
              IsError(ErrorCode::kDataLoss, "hole"));
}

TEST(SafetensorsHeaderTest, RefusesOverlap) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                        "b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                    3),
              IsError(ErrorCode::kDataLoss, "overlap"));
}

TEST(SafetensorsHeaderTest, RefusesBytesBehindTheLastTensor) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3),
              IsError(ErrorCode::kDataLoss, "end at byte 2 of 3"));
}

TEST(SafetensorsHeaderTest, RefusesOffsetsOutsideTheFile) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1),
              IsError(ErrorCode::kDataLoss, "lead out"));
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2),
              IsError(ErrorCode::kDataLoss, "lead out"));
}

TEST(SafetensorsHeaderTest, RefusesShapesThatOverflow) {
  EXPECT_THAT(
      Parse(R"({"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
      IsError(ErrorCode::kDataLoss, "agree"));
}

TEST(SafetensorsHeaderTest, RefusesBytesThatDoNotAgreeWithTheShape) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              IsError(ErrorCode::kDataLoss, "agree"));
}

TEST(SafetensorsHeaderTest, RefusesAnUnknownDType) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3),
              IsError(ErrorCode::kUnimplemented, "F6_E2M3"));
}

TEST(SafetensorsHeaderTest, RefusesTheSameNameTwice) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                        "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                    1),
              IsError(ErrorCode::kDataLoss, "'a' twice"));
}

class HostileJsonTest : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileJsonTest, IsRefused) {
  EXPECT_THAT(Parse(GetParam(), 4), IsError(ErrorCode::kDataLoss, "header"));
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

TEST(SafetensorsHeaderTest, DeepNestingIsRefusedAtOnce) {
  std::string json = "{\"a\":";
  json.append(1'000'000, '[');
  EXPECT_THAT(Parse(json, 0), IsError(ErrorCode::kDataLoss, "list"));
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    const std::string path = directory_ / "file.safetensors";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  static std::string WithLength(uint64_t length, const std::string& rest) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
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

TEST_F(SafetensorsFileTest, RefusesAHeaderBeyondTheFormatsBound) {
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

TEST_F(SafetensorsFileTest, WriterRefusesWhatTheFormatCannotSay) {
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
