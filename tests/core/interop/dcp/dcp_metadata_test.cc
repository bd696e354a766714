// Metadata that is written and read back. tests/tools tests with torch what torch writes and reads.

#include "core/interop/dcp/internal/dcp_metadata.h"

#include "core/interop/dcp/internal/dcp_metadata_reader.h"
#include "core/interop/dcp/internal/dcp_metadata_writer.h"
#include "tests/support/result_matchers.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;

DcpMetadata OneTensor(const std::string& key, Shape shape) {
  const std::vector<uint64_t> origin(shape.size(), 0);
  DcpMetadata metadata;
  metadata.items = {
      {.key = key,
       .tensor = DcpTensor{.dtype = DType::kFloat32, .shape = shape, .chunks = {{origin, shape}}},
       .path = {key}}};
  metadata.locations[{key, origin}] = {
      .file = "__0_0.distcp", .offset_bytes = 64, .length_bytes = 1000};
  return metadata;
}

TEST(DcpMetadataTest, ReadsWhatWasWritten) {
  DcpMetadata metadata = OneTensor("w", {4, 5});
  metadata.items.push_back({.key = "list.0", .tensor = {}, .path = {"list", uint64_t{0}}});
  metadata.locations[{"list.0", std::nullopt}] = {
      .file = "__0_0.distcp", .offset_bytes = 1064, .length_bytes = 7};
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::string pickle, WriteDcpMetadata(metadata));
  CAIRN_ASSERT_OK_AND_ASSIGN(const DcpMetadata read,
                             ReadDcpMetadata(std::as_bytes(std::span(pickle))));
  EXPECT_EQ(read, metadata);
}

TEST(DcpMetadataTest, RefusesToWriteWhatCannotBeRead) {
  EXPECT_THAT(WriteDcpMetadata(OneTensor("\xff", {1})),
              IsError(ErrorCode::kInvalidArgument, "UTF-8"));
  EXPECT_THAT(WriteDcpMetadata(OneTensor("k", {0, uint64_t{1} << 63})),
              IsError(ErrorCode::kInvalidArgument, "not a count"));
}

}  // namespace
}  // namespace cairn::core::internal
