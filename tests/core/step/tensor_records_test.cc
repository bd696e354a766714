#include "core/step/internal/tensor_records.h"

#include "cairn_schema/chunk_generated.h"
#include "cairn_schema/tensor_generated.h"
#include "core/step/contents.h"
#include "kv/base/key.h"
#include "schema/record.h"
#include "tests/support/result_matchers.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;

TensorInfo Sample() {
  return {.fqn = "a.b",
          .dtype = DType::kBFloat16,
          .shape = {3, 4},
          .nbytes = 24,
          .alias_of = "a.owner",
          .alias_offset_bytes = 8,
          .alias_strides = {1, 3}};
}

std::vector<std::byte> Bytes(const flatbuffers::FlatBufferBuilder& builder) {
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

std::vector<std::byte> EncodeChunk(std::vector<uint64_t> sizes, schema::Extent extent,
                                   uint8_t version = 1, uint8_t digest_kind = 1) {
  flatbuffers::FlatBufferBuilder builder;
  const schema::Digest digest(1, 2);
  const bool has_digest = digest_kind == 1;  // other kinds have theirs in another field
  const auto size_list = builder.CreateVector(sizes);
  schema::ChunkRecordBuilder record(builder);
  record.add_sizes(size_list);
  record.add_extent(&extent);
  if (has_digest) record.add_digest(&digest);
  record.add_since_step(7);
  record.add_version(version);
  record.add_digest_kind(digest_kind);
  builder.Finish(record.Finish(), schema::ChunkRecordIdentifier());
  return Bytes(builder);
}

// Encodes an alias like EncodeTensor, which would refuse an invalid one.
std::vector<std::byte> EncodeUnchecked(const TensorInfo& info) {
  flatbuffers::FlatBufferBuilder builder;
  const auto shape = builder.CreateVector(info.shape);
  const auto alias_of = builder.CreateString(info.alias_of.value());
  const auto alias_strides = builder.CreateVector(info.alias_strides);
  builder.Finish(
      schema::CreateTensorRecord(builder, schema::kRecordVersion, static_cast<uint8_t>(info.dtype),
                                 shape, info.nbytes, info.chunk_count, alias_of,
                                 info.alias_offset_bytes, alias_strides, info.hidden),
      schema::TensorRecordIdentifier());
  return Bytes(builder);
}

TEST(TensorRecordTest, HelperEncodesLikeTheProduct) {
  EXPECT_EQ(EncodeTensor(Sample()), EncodeUnchecked(Sample()));
}

TEST(TensorRecordTest, AnEncoderHasNothingLeftOfTheRecordsBefore) {
  const auto plain = [](Shape shape, DType dtype, uint64_t chunk_count) {
    const uint64_t nbytes = *TensorBytes(dtype, shape);
    return TensorInfo{.dtype = dtype, .shape = shape, .nbytes = nbytes, .chunk_count = chunk_count};
  };
  std::vector<TensorInfo> infos = {Sample(),
                                   plain({2, 3}, DType::kFloat32, 1),
                                   plain({4, 5}, DType::kInt64, 7),
                                   plain({}, DType::kInt64, 1),
                                   plain({}, DType::kFloat32, 1),
                                   plain({0, 3}, DType::kInt64, 0)};
  infos.push_back(infos[1]);
  infos.back().hidden = true;
  TensorEncoder encoder;
  for (const TensorInfo& before : infos) {
    for (const TensorInfo& info : infos) {
      (void)encoder.Encode(before);
      const auto record = encoder.Encode(info);
      EXPECT_EQ(std::vector(record.begin(), record.end()), EncodeTensor(info));
    }
  }
}

TEST(TensorRecordTest, RefusesAnUnknownDType) {
  TensorInfo info = Sample();
  info.dtype = static_cast<DType>(222);
  EXPECT_THAT(DecodeTensor("a.b", EncodeUnchecked(info)),
              IsError(ErrorCode::kUnimplemented, "222"));
}

TEST(TensorRecordTest, RefusesBytesThatDoNotAgreeWithTheShape) {
  TensorInfo info = Sample();
  info.nbytes = 25;
  EXPECT_THAT(DecodeTensor("a.b", EncodeUnchecked(info)), IsError(ErrorCode::kDataLoss, "a.b"));
  info.shape = {uint64_t{1} << 40, uint64_t{1} << 40};
  EXPECT_THAT(DecodeTensor("a.b", EncodeUnchecked(info)), IsError(ErrorCode::kDataLoss, "a.b"));
}

TEST(TensorRecordTest, RefusesStridesThatDoNotAgreeWithTheShape) {
  TensorInfo info = Sample();
  info.alias_strides = {1};
  EXPECT_THAT(DecodeTensor("a.b", EncodeUnchecked(info)), IsError(ErrorCode::kDataLoss, "strides"));
}

TEST(TensorRecordTest, RefusesANewerVersionAndNonsense) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(schema::CreateTensorRecord(builder, schema::kRecordVersion + 1),
                 schema::TensorRecordIdentifier());
  EXPECT_THAT(DecodeTensor("a.b", Bytes(builder)), IsError(ErrorCode::kUnimplemented, "newer"));
  EXPECT_THAT(DecodeTensor("a.b", std::vector<std::byte>(40)),
              IsError(ErrorCode::kDataLoss, "a.b"));
  EXPECT_THAT(DecodeTensor("a.b", {}), IsError(ErrorCode::kDataLoss, "a.b"));
}

TEST(TensorRecordTest, FlippedBitsNeverCrash) {
  const auto record = EncodeTensor(Sample());
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    auto damaged = record;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const auto info = DecodeTensor("a.b", damaged);
    if (!info) continue;
    EXPECT_EQ(info->nbytes, *TensorBytes(info->dtype, info->shape));
  }
}

TEST(ChunkRecordTest, ReadsKeyAndRecord) {
  const uint64_t offsets[] = {4, 0};
  const auto record = EncodeChunk({2, 6}, schema::Extent(9, 4096, 48, 8192));
  CAIRN_ASSERT_OK_AND_ASSIGN(const DecodedChunk chunk,
                             DecodeChunk(kv::ChunkKey("w", offsets), record));
  EXPECT_EQ(chunk.info.box, (Box{{4, 0}, {2, 6}}));
  EXPECT_EQ(chunk.info.extents, kv::Extents(kv::Extent{9, 4096, 48, 8192}));
  EXPECT_EQ(chunk.info.digest, (kv::Digest{1, 2}));
  EXPECT_EQ(chunk.info.since_step, 7u);
}

TEST(ChunkRecordTest, RefusesWhatItCannotKnow) {
  const std::string key = kv::ChunkKey("w", std::vector<uint64_t>{0});
  EXPECT_THAT(
      DecodeChunk(key, EncodeChunk({1}, schema::Extent(1, 0, 4, 0), 1, 3)),
      IsError(ErrorCode::kUnimplemented, "chunk [0]: a chunk record has a digest of kind 3"));
  EXPECT_THAT(DecodeChunk(key, EncodeChunk({1}, schema::Extent(1, 0, 4, 0), 9)),
              IsError(ErrorCode::kUnimplemented, "newer"));
}

TEST(ChunkRecordTest, RefusesImpossibleSizes) {
  const std::string key = kv::ChunkKey("w", std::vector<uint64_t>{0});
  EXPECT_THAT(DecodeChunk(key, EncodeChunk({1, 1}, schema::Extent(1, 0, 4, 0))),
              IsError(ErrorCode::kDataLoss, "w"));
  EXPECT_THAT(DecodeChunk(key, EncodeChunk({1}, schema::Extent(1, ~uint64_t{0}, 4, 0))),
              IsError(ErrorCode::kDataLoss, "w"));
  EXPECT_THAT(DecodeChunk(key, EncodeChunk({1}, schema::Extent(1, 0, 0, 0))),
              IsError(ErrorCode::kDataLoss, "w"));
}

TEST(ChunkRecordTest, MustFitItsTensor) {
  const TensorInfo tensor{.fqn = "w", .dtype = DType::kInt32, .shape = {4, 6}, .nbytes = 96};
  const auto chunk = [](Box box, uint64_t length) {
    return ChunkInfo{.box = std::move(box), .extents = kv::Extent{.length_bytes = length}};
  };
  CAIRN_EXPECT_OK(CheckChunk(EntryOf(tensor), chunk({{2, 0}, {2, 6}}, 48)));
  EXPECT_THAT(CheckChunk(EntryOf(tensor), chunk({{3, 0}, {2, 6}}, 48)),
              IsError(ErrorCode::kDataLoss, "w"));
  EXPECT_THAT(CheckChunk(EntryOf(tensor), chunk({{2, 0}, {2, 6}}, 47)),
              IsError(ErrorCode::kDataLoss, "w"));
  EXPECT_THAT(CheckChunk(EntryOf(tensor), chunk({{2}, {2}}, 48)),
              IsError(ErrorCode::kDataLoss, "w"));
}

TEST(RunOffsetTest, KnowsRunsFromOtherBoxes) {
  const Shape shape = {4, 3, 5};
  EXPECT_EQ(ContiguousOffsetBytes(DType::kInt16, shape, {{1, 0, 0}, {2, 3, 5}}), 30u);
  EXPECT_EQ(ContiguousOffsetBytes(DType::kInt16, shape, {{1, 2, 3}, {1, 1, 2}}), 56u);
  EXPECT_EQ(ContiguousOffsetBytes(DType::kInt16, shape, {{1, 0, 0}, {1, 2, 5}}), 30u);
  EXPECT_EQ(ContiguousOffsetBytes(DType::kInt16, shape, {{0, 0, 0}, {2, 2, 5}}), std::nullopt);
  EXPECT_EQ(ContiguousOffsetBytes(DType::kInt16, shape, {{0, 0, 0}, {1, 2, 4}}), std::nullopt);
}

}  // namespace
}  // namespace cairn::core::internal
