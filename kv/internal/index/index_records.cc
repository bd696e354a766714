// Encoding and decoding of step, segment, chunk and usage records.

#include "kv/internal/index/index_records.h"

#include <cairn_schema/chunk_generated.h>
#include <cairn_schema/segment_generated.h>
#include <cairn_schema/step_generated.h>

#include "kv/step_info.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

schema::Digest ToSchema(const Digest& digest) { return {digest.lo, digest.hi}; }
Digest FromSchema(const schema::Digest* digest) {
  return digest == nullptr ? Digest{} : Digest{.lo = digest->lo(), .hi = digest->hi()};
}
std::string Text(const flatbuffers::String* text) {
  return text == nullptr ? std::string() : text->str();
}

schema::Extent ToSchema(const Extent& extent) {
  return {extent.segment_id, extent.offset_bytes, extent.length_bytes,
          extent.page_digests_offset_bytes};
}

}  // namespace

std::vector<std::byte> TakeBytes(const flatbuffers::FlatBufferBuilder& builder) {
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

std::vector<std::byte> EncodeStep(const StepEntry& entry) {
  const StepInfo& info = entry.info;
  flatbuffers::FlatBufferBuilder builder(512);
  std::vector<flatbuffers::Offset<schema::ManifestRef>> manifests;
  for (const ManifestRef& manifest : entry.manifests) {
    const schema::Digest digest = ToSchema(manifest.digest);
    manifests.push_back(
        schema::CreateManifestRef(builder, manifest.rank, manifest.file_bytes, &digest));
  }
  const auto manifests_offset = builder.CreateVector(manifests);
  const auto attempt = builder.CreateString(info.attempt);
  const schema::Digest structure = ToSchema(info.structure);
  schema::StepRecordBuilder record(builder);
  record.add_version(schema::kRecordVersion);
  record.add_step(info.step);
  record.add_generation(info.generation);
  record.add_created_unix_ns(info.created_unix_ns);
  record.add_world_size(info.world_size);
  record.add_attempt(attempt);
  if (info.base_step) record.add_base_step(*info.base_step);
  record.add_tensor_count(info.tensor_count);
  record.add_value_count(info.value_count);
  record.add_chunk_count(info.chunk_count);
  record.add_reused_chunk_count(info.reused_chunk_count);
  record.add_logical_bytes(info.logical_bytes);
  record.add_written_bytes(info.written_bytes);
  record.add_structure(&structure);
  record.add_manifests(manifests_offset);
  schema::FinishStepRecordBuffer(builder, record.Finish());
  std::vector<std::byte> bytes = TakeBytes(builder);
  CAIRN_CHECK(DecodeStep(bytes).has_value());
  return bytes;
}

Result<StepEntry> DecodeStep(std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(
      const schema::StepRecord* step,
      CheckedRecord<schema::StepRecord>(record, schema::StepRecordIdentifier(), "StepRecord"));
  StepEntry entry;
  entry.info = StepInfo{
      .step = step->step(),
      .generation = step->generation(),
      .created_unix_ns = step->created_unix_ns(),
      .world_size = step->world_size(),
      .attempt = Text(step->attempt()),
      .base_step = std::nullopt,
      .tensor_count = step->tensor_count(),
      .value_count = step->value_count(),
      .chunk_count = step->chunk_count(),
      .reused_chunk_count = step->reused_chunk_count(),
      .logical_bytes = step->logical_bytes(),
      .written_bytes = step->written_bytes(),
      .structure = FromSchema(step->structure()),
  };
  if (const auto base = step->base_step()) entry.info.base_step = *base;
  if (step->manifests() != nullptr) {
    for (const schema::ManifestRef* manifest : *step->manifests()) {
      entry.manifests.push_back({.rank = manifest->rank(),
                                 .file_bytes = manifest->file_bytes(),
                                 .digest = FromSchema(manifest->digest())});
    }
  }
  return entry;
}

std::vector<std::byte> EncodeSegment(const SegmentInfo& info) {
  flatbuffers::FlatBufferBuilder builder(256);
  const auto root = schema::CreateSegmentRecord(
      builder, schema::kRecordVersion, info.segment_id, builder.CreateString(info.name), info.step,
      info.rank, info.file_bytes, info.payload_bytes, info.chunk_count, info.footer_digest,
      info.page_digests_checksum);
  schema::FinishSegmentRecordBuffer(builder, root);
  std::vector<std::byte> bytes = TakeBytes(builder);
  CAIRN_CHECK(DecodeSegment(bytes).has_value());
  return bytes;
}

Result<SegmentInfo> DecodeSegment(std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(const schema::SegmentRecord* segment,
                   CheckedRecord<schema::SegmentRecord>(record, schema::SegmentRecordIdentifier(),
                                                        "SegmentRecord"));
  SegmentInfo info{
      .segment_id = segment->segment_id(),
      .name = Text(segment->name()),
      .step = segment->step(),
      .rank = segment->rank(),
      .file_bytes = segment->file_bytes(),
      .payload_bytes = segment->payload_bytes(),
      .chunk_count = segment->chunk_count(),
      .footer_digest = segment->footer_digest(),
      .page_digests_checksum = segment->page_digests_checksum(),
  };
  // The name becomes part of a path, so it must not contain a separator.
  if (info.name.empty() || info.name.find('/') != std::string::npos ||
      info.name.find('\0') != std::string::npos) {
    return Fail(ErrorCode::kDataLoss, "a segment record has a name that is not a file name");
  }
  return info;
}

std::vector<std::byte> EncodeChunk(const ChunkEntry& entry) {
  flatbuffers::FlatBufferBuilder builder(256);
  const schema::Digest digest = ToSchema(entry.digest);
  const auto sizes = builder.CreateVector(entry.sizes);
  flatbuffers::Offset<schema::ChunkRecord> root;
  if (entry.extents.size() == 1) {
    const schema::Extent extent = ToSchema(entry.extents.front());
    root = schema::CreateChunkRecord(builder, schema::kRecordVersion, /*encoding=*/0, sizes,
                                     &extent, &digest, entry.since_step);
  } else {
    std::vector<schema::Extent> stored;
    for (const Extent& extent : entry.extents) stored.push_back(ToSchema(extent));
    const auto extents = builder.CreateVectorOfStructs(stored);
    root = schema::CreateChunkRecord(builder, schema::kSeveralExtentsVersion, /*encoding=*/0, sizes,
                                     nullptr, &digest, entry.since_step, extents);
  }
  schema::FinishChunkRecordBuffer(builder, root);
  std::vector<std::byte> bytes = TakeBytes(builder);
  CAIRN_DCHECK(DecodeChunkExtents(bytes).has_value());
  return bytes;
}

Result<Extents> DecodeChunkExtents(std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(
      const schema::ChunkRecord* chunk,
      CheckedRecord<schema::ChunkRecord>(record, schema::ChunkRecordIdentifier(), "ChunkRecord"));
  return ReadExtents(*chunk);
}

std::string UsageKey(uint64_t segment_id, uint64_t generation) {
  std::string key = NumberKey(segment_id);
  AppendBigEndian(key, generation);
  return key;
}

std::array<std::byte, 8> EncodeUsage(uint64_t live_bytes) {
  std::array<std::byte, 8> record;
  schema::PutLittleEndian(record, 0, live_bytes);
  return record;
}

Result<Usage> DecodeUsage(std::string_view key, std::span<const std::byte> record) {
  if (key.size() != 16 || record.size() != 8) {
    return Fail(ErrorCode::kDataLoss, "a usage record has a wrong size");
  }
  return Usage{.segment_id = ReadBigEndian(key.data()),
               .generation = ReadBigEndian(key.data() + 8),
               .live_bytes = schema::GetLittleEndian<uint64_t>(record)};
}

}  // namespace cairn::kv::internal
