// Headers as hostile input, with one defect per test, and headers that are written.

#include "core/interop/safetensors/internal/safetensors_header.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

Result<internal::SafetensorsHeader> Parse(const std::string& json, uint64_t data_bytes) {
  return internal::DecodeSafetensorsHeader(json, data_bytes);
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

TEST(SafetensorsHeaderTest, AcceptsAnEmptyFile) {
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
}

struct BadHeader {
  const char* json;
  uint64_t data_bytes;
  const char* why;
  ErrorCode code = ErrorCode::kDataLoss;
};
class BadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsRefused) {
  const BadHeader& bad = GetParam();
  EXPECT_THAT(Parse(bad.json, bad.data_bytes), IsError(bad.code, bad.why));
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
                  "end at byte 2 of 3"},
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

TEST(SafetensorsHeaderTest, RefusesDeepNestingAtOnce) {
  std::string json = "{\"a\":";
  json.append(1'000'000, '[');
  EXPECT_THAT(Parse(json, 0), IsError(ErrorCode::kDataLoss, "list"));
}

std::string Encode(const std::vector<SafetensorsEntry>& entries,
                   const std::map<std::string, std::string>& metadata = {}) {
  auto encoded = internal::EncodeSafetensorsHeader(entries, metadata);
  EXPECT_TRUE(testing::IsOk(encoded));
  return encoded ? encoded->json : "";
}

// The bytes are compared, because other programs compare checksums of whole files.
TEST(SafetensorsHeaderTest, WritesTheMetadataAndThenTheEntriesInTheirOrder) {
  EXPECT_EQ(Encode({}), "{}      ");
  EXPECT_EQ(Encode({}, {{"format", "pt"}}), R"({"__metadata__":{"format":"pt"}})");
  EXPECT_EQ(
      Encode({{"b", DType::kFloat32, {2, 3}}, {"a", DType::kInt8, {}}}, {{"z", "1"}, {"k", ""}}),
      R"({"__metadata__":{"k":"","z":"1"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a":{"dtype":"I8","shape":[],"data_offsets":[24,25]}}  )");
}

TEST(SafetensorsHeaderTest, EscapesNames) {
  EXPECT_THAT(Encode({{"\"\\\n\x01/\xc3\xa9\x7f", DType::kInt8, {0}}}),
              ::testing::StartsWith("{\"\\\"\\\\\\n\\u0001/\xc3\xa9\x7f\":{\"dtype\":\"I8\""));
}

TEST(SafetensorsHeaderTest, PadsToAMultipleOfEightBytes) {
  for (size_t length = 1; length < 20; ++length) {
    EXPECT_EQ(Encode({{std::string(length, 'x'), DType::kInt8, {1}}}).size() % 8, 0u) << length;
  }
}

TEST(SafetensorsHeaderTest, RefusesShapesOf4BitFloatsThatTheFormatCannotCount) {
  const auto encode = [](Shape shape) {
    const SafetensorsEntry entry{"k", DType::kFloat4E2M1FNx2, std::move(shape)};
    return internal::EncodeSafetensorsHeader({&entry, 1}, {});
  };
  CAIRN_EXPECT_OK(encode({3, 2}));
  EXPECT_THAT(encode({}), IsError(ErrorCode::kInvalidArgument, "4-bit"));
  EXPECT_THAT(encode({0, uint64_t{1} << 63}), IsError(ErrorCode::kInvalidArgument, "4-bit"));
}

// With a cost per key that grew with the number of keys this would take minutes.
TEST(SafetensorsHeaderTest, WritesAHundredThousandTensors) {
  std::vector<SafetensorsEntry> entries;
  for (int i = 0; i < 100'000; ++i) {
    entries.push_back({fmt::format("model.layers.{}.weight", i), DType::kBFloat16, {2, 2}});
  }
  EXPECT_GT(Encode(entries).size(), 5'000'000u);
}

}  // namespace
}  // namespace cairn::core
