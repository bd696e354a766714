// Encoding and decoding of step, segment, chunk and usage records.

#include "kv/root/internal/kv_records.h"

#include <cairn_schema/chunk_generated.h>
#include <cairn_schema/segment_generated.h>

#include <bit>
#include <cstring>

#include "kv/root/internal/step_summary.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

schema::Digest ToSchema(const Digest& digest) { return {digest.lo, digest.hi}; }
schema::Extent ToSchema(const Extent& extent) {
  return {extent.segment_id, extent.offset_bytes, extent.length_bytes,
          extent.page_digests_offset_bytes};
}

Digest FromSchema(const schema::Digest* digest) {
  return digest == nullptr ? Digest{} : Digest{.lo = digest->lo(), .hi = digest->hi()};
}

// Copies the elements, because the verifier checks the alignment of a vector's length but not of
// its 8-byte elements: in a damaged record they may be unaligned.
void CopySizes(const flatbuffers::Vector<uint64_t>* stored, std::vector<uint64_t>& sizes) {
  static_assert(std::endian::native == std::endian::little);
  if (stored == nullptr || stored->size() == 0) return;
  sizes.resize(stored->size());
  std::memcpy(sizes.data(), stored->Data(), sizes.size() * sizeof(uint64_t));
}

using StoredExtents = flatbuffers::Offset<flatbuffers::Vector<const schema::Extent*>>;

StoredExtents CreateExtents(flatbuffers::FlatBufferBuilder& builder,
                            std::span<const Extent> extents) {
  if (extents.empty()) return 0;
  std::vector<schema::Extent> stored;
  stored.reserve(extents.size());
  for (const Extent& extent : extents) stored.push_back(ToSchema(extent));
  return builder.CreateVectorOfStructs(stored);
}

}  // namespace

std::vector<std::byte> TakeBytes(const flatbuffers::FlatBufferBuilder& builder) {
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

std::vector<std::byte> EncodeStep(const StepInfo& info) {
  flatbuffers::FlatBufferBuilder builder(512);
  schema::FinishStepSummaryBuffer(builder, AddSummary(builder, info));
  std::vector<std::byte> bytes = TakeBytes(builder);
  CAIRN_CHECK(DecodeStep(bytes).has_value());
  return bytes;
}

Result<StepInfo> DecodeStep(std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(
      const schema::StepSummary* summary,
      CheckedRecord<schema::StepSummary>(record, schema::StepSummaryIdentifier(), "StepSummary"));
  return ReadSummary(summary);
}

SegmentInfo NewSegmentInfo(const ObjectId& id) {
  const std::string object = ObjectName(ObjectKind::kSegment, id);
  return SegmentInfo{.segment_id = id.id,
                     .id_tail = id.id_tail,
                     .epoch = id.epoch,
                     .name = object.substr(ObjectFolder(ObjectKind::kSegment).size())};
}

ObjectId IdOf(const SegmentInfo& info) {
  return {.epoch = info.epoch, .id = info.segment_id, .id_tail = info.id_tail};
}

std::string SegmentObject(const SegmentInfo& info) {
  return ObjectName(ObjectKind::kSegment, IdOf(info));
}

std::vector<std::byte> EncodeSegment(const SegmentInfo& info) {
  flatbuffers::FlatBufferBuilder builder(256);
  const auto root = schema::CreateSegmentRecord(
      builder, schema::kRecordVersion, info.segment_id, info.epoch, info.step, info.rank,
      info.file_bytes, info.payload_bytes, info.chunk_count, info.footer_digest,
      info.page_digests_checksum, info.id_tail);
  schema::FinishSegmentRecordBuffer(builder, root);
  std::vector<std::byte> bytes = TakeBytes(builder);
  CAIRN_CHECK(DecodeSegment(bytes).has_value());
  return bytes;
}

Result<SegmentInfo> DecodeSegment(std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(const schema::SegmentRecord* segment,
                   CheckedRecord<schema::SegmentRecord>(record, schema::SegmentRecordIdentifier(),
                                                        "SegmentRecord"));
  CAIRN_TRY(CheckDigestKind(segment->digest_kind(), "a SegmentRecord"));
  SegmentInfo info = NewSegmentInfo(
      {.epoch = segment->epoch(), .id = segment->segment_id(), .id_tail = segment->id_tail()});
  info.step = segment->step();
  info.rank = segment->rank();
  info.file_bytes = segment->file_bytes();
  info.payload_bytes = segment->payload_bytes();
  info.chunk_count = segment->chunk_count();
  info.footer_digest = segment->footer_digest();
  info.page_digests_checksum = segment->page_digests_checksum();
  return info;
}

Result<SegmentInfo> ReadSegmentRecord(const TableStack& tables, uint64_t segment_id) {
  CAIRN_TRY_ASSIGN(const auto record,
                   tables.Get(TableKey(Column::kSegments, NumberKey(segment_id))));
  if (record) return DecodeSegment(*record);
  return Fail(ErrorCode::kDataLoss, "a step has no record of a segment that it uses");
}

std::span<const std::byte> ChunkEncoder::Encode(const ChunkEntry& entry) {
  const ChunkExtents& extents = entry.extents;
  const Extent& first = extents.payload.front();
  const bool has_usual_fields = extents.payload.size() == 1 && !first.is_zeros() &&
                                extents.deltas.empty() && !entry.statistics &&
                                entry.since_step != 0;
  const std::pair dimensions_and_page_bits(entry.sizes.size(), first.page_bits);
  if (has_usual_fields && dimensions_and_page_bits_ == dimensions_and_page_bits) {
    auto* const record =
        flatbuffers::GetMutableRoot<schema::ChunkRecord>(builder_.GetBufferPointer());
    for (size_t d = 0; d < entry.sizes.size(); ++d) {
      record->mutable_sizes()->Mutate(static_cast<uint32_t>(d), entry.sizes[d]);
    }
    *record->mutable_extent() = ToSchema(first);
    *record->mutable_digest() = ToSchema(entry.digest);
    record->mutate_since_step(entry.since_step);
  } else {
    Build(entry);
    dimensions_and_page_bits_.reset();
    if (has_usual_fields) dimensions_and_page_bits_ = dimensions_and_page_bits;
  }
  return std::as_bytes(std::span(builder_.GetBufferPointer(), builder_.GetSize()));
}

void ChunkEncoder::Build(const ChunkEntry& entry) {
  flatbuffers::FlatBufferBuilder& builder = builder_;
  builder.Clear();
  const schema::Digest digest = ToSchema(entry.digest);
  const ChunkExtents& extents = entry.extents;
  const bool is_compressed = extents.is_compressed();
  const schema::Extent first = ToSchema(extents.payload.front());
  const auto steps = CreateExtents(builder, extents.deltas);
  const auto further = CreateExtents(builder, extents.payload.all().subspan(1));
  const auto sizes = entry.sizes.empty() ? 0 : builder.CreateVector(entry.sizes);
  std::optional<schema::ChunkStatistics> statistics;
  if (const auto& values = entry.statistics) {
    statistics.emplace(values->min, values->max, values->mean, values->zeros, values->nans,
                       values->infs);
  }
  schema::ChunkRecordBuilder record(builder);
  // In this order, no byte between `sizes` and the offset of it is lost to alignment.
  record.add_sizes(sizes);
  record.add_further_extents(further);
  record.add_steps(steps);
  record.add_page_bits(extents.payload.front().page_bits);
  if (is_compressed) record.add_length_bytes(first.length_bytes());
  if (!is_compressed) record.add_extent(&first);
  record.add_digest(&digest);
  record.add_since_step(entry.since_step);
  if (statistics) record.add_statistics(&*statistics);
  schema::FinishChunkRecordBuffer(builder, record.Finish());
}

std::vector<std::byte> EncodeChunk(const ChunkEntry& entry) {
  ChunkEncoder encoder;
  const std::span<const std::byte> record = encoder.Encode(entry);
  CAIRN_DCHECK(DecodeChunkExtents(record).has_value());
  return {record.begin(), record.end()};
}

void MovePageDigests(std::span<std::byte> record, uint64_t segment_id, uint64_t bytes) {
  auto* const chunk = flatbuffers::GetMutableRoot<schema::ChunkRecord>(record.data());
  const auto move = [&](schema::Extent* extent) {
    if (extent == nullptr || extent->segment_id() != segment_id) return;
    extent->mutate_page_digests_offset_bytes(extent->page_digests_offset_bytes() + bytes);
  };
  move(chunk->mutable_extent());
  for (auto* const more : {chunk->mutable_further_extents(), chunk->mutable_steps()}) {
    for (uint32_t i = 0; more != nullptr && i < more->size(); ++i) {
      move(more->GetMutableObject(i));
    }
  }
}

Result<ChunkEntry> DecodeChunk(std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(
      const schema::ChunkRecord* chunk,
      CheckedRecord<schema::ChunkRecord>(record, schema::ChunkRecordIdentifier(), "ChunkRecord"));
  ChunkEntry entry{.sizes = {},
                   .extents = {},
                   .digest = FromSchema(chunk->digest()),
                   .since_step = chunk->since_step(),
                   .statistics = ReadStatistics(*chunk)};
  CopySizes(chunk->sizes(), entry.sizes);
  CAIRN_TRY_ASSIGN(entry.extents, ReadExtents(*chunk));
  return entry;
}

Result<ChunkExtents> DecodeChunkExtents(std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(
      const schema::ChunkRecord* chunk,
      CheckedRecord<schema::ChunkRecord>(record, schema::ChunkRecordIdentifier(), "ChunkRecord"));
  return ReadExtents(*chunk);
}

std::array<std::byte, 16> EncodeUsage(const SegmentUse& use) {
  std::array<std::byte, 16> record{};
  schema::PutLittleEndian(record, 0, use.live_bytes);
  schema::PutLittleEndian(record, 8, use.segment.epoch);
  schema::PutLittleEndian(record, 12, use.segment.id_tail);
  return record;
}

Result<SegmentUse> DecodeUsage(std::string_view key, std::span<const std::byte> record) {
  if (key.size() != 8 || record.size() < 16) {
    return Fail(ErrorCode::kDataLoss, "a usage record has a wrong size");
  }
  return SegmentUse{.segment = {.epoch = schema::GetLittleEndian<uint32_t>(record, 8),
                                .id = ReadBigEndian(key.data()),
                                .id_tail = schema::GetLittleEndian<uint32_t>(record, 12)},
                    .live_bytes = schema::GetLittleEndian<uint64_t>(record, 0)};
}

Result<std::vector<SegmentUse>> ReadUsage(const TableStack& tables) {
  std::vector<SegmentUse> usage;
  CAIRN_TRY(
      tables.Scan(ColumnPrefix(Column::kUsage),
                  [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                    CAIRN_TRY_ASSIGN(const SegmentUse use, DecodeUsage(key.substr(1), record));
                    usage.push_back(use);
                    return true;
                  }));
  return usage;
}

std::vector<std::byte> EncodeTables(std::span<const TableInfo> after) {
  std::vector<std::byte> record;
  const auto put = [&](uint64_t value) {
    record.resize(record.size() + 8);
    schema::PutLittleEndian(record, record.size() - 8, value);
  };
  put(after.size() | uint64_t{kXxh3} << 32);
  for (const TableInfo& table : after) {
    put(table.id.id);
    put(table.id.epoch | uint64_t{table.id.id_tail} << 32);
    put(table.file_bytes);
    put(table.record_count);
    put(table.digest);
  }
  return record;
}

Result<std::vector<TableInfo>> DecodeTables(std::span<const std::byte> record) {
  constexpr size_t kTableBytes = 40;
  const auto wrong_size = [] {
    return Fail(ErrorCode::kDataLoss, "the list of a step's tables has a wrong size");
  };
  if (record.size() < 8) return wrong_size();
  CAIRN_TRY(
      CheckDigestKind(schema::GetLittleEndian<uint32_t>(record, 4), "the list of a step's tables"));
  if (record.size() != 8 + kTableBytes * schema::GetLittleEndian<uint32_t>(record, 0)) {
    return wrong_size();
  }
  std::vector<TableInfo> tables;
  for (size_t at = 8; at < record.size(); at += kTableBytes) {
    const auto number = [&](size_t i) {
      return schema::GetLittleEndian<uint64_t>(record, at + 8 * i);
    };
    tables.push_back({.id = {.epoch = static_cast<uint32_t>(number(1)),
                             .id = number(0),
                             .id_tail = static_cast<uint32_t>(number(1) >> 32)},
                      .file_bytes = number(2),
                      .record_count = number(3),
                      .digest = number(4)});
  }
  return tables;
}

}  // namespace cairn::kv::internal
