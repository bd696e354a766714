// Encoding and decoding of segment headers, trailers and footers; and reading of all of them, the
// trailer first, which has the positions of the other parts.

#include "kv/segment/internal/segment_format.h"

#include <cairn_schema/segment_footer_generated.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/base/record_check.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/step_summary.h"
#include "schema/little_endian.h"
#include "schema/record.h"

namespace cairn::kv::internal {
namespace {

using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr char kHeaderMagic[] = "CAIRNSEG";
constexpr char kTrailerMagic[] = "CAIRNEND";
constexpr uint64_t kChecksumBytes = 8;
constexpr uint64_t kSegmentAlignBytes = 4096;

bool HasMagic(std::span<const std::byte> bytes, const char* magic) {
  return std::memcmp(bytes.data(), magic, 8) == 0;
}

bool HasChecksum(std::span<const std::byte> bytes) {
  const uint64_t covered = bytes.size() - kChecksumBytes;
  return GetLittleEndian<uint64_t>(bytes, covered) == Checksum64(bytes.first(covered));
}

void PutChecksum(std::span<std::byte> bytes) {
  const uint64_t covered = bytes.size() - kChecksumBytes;
  PutLittleEndian(bytes, covered, Checksum64(bytes.first(covered)));
}

Result<void> CheckFrame(std::span<const std::byte> bytes, const char* magic, const char* part) {
  if (!HasMagic(bytes, magic)) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("the segment's {} does not begin with {}", part, magic));
  }
  // Check the checksum first: a flipped bit in the version must not appear to be a newer format.
  if (!HasChecksum(bytes)) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("the segment's {} does not match its checksum", part));
  }
  const auto version = GetLittleEndian<uint32_t>(bytes, 8);
  if (version != kSegmentVersion) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("the segment has format version {}, this build reads {}", version,
                            kSegmentVersion));
  }
  return {};
}

}  // namespace

void EncodeSegmentHeader(const SegmentHeader& header,
                         std::span<std::byte, kSegmentHeaderBytes> out) {
  std::ranges::fill(out, std::byte{0});
  std::memcpy(out.data(), kHeaderMagic, 8);
  PutLittleEndian<uint32_t>(out, 8, kSegmentVersion);
  PutLittleEndian<uint32_t>(out, 12, kSegmentHeaderBytes);
  std::ranges::copy(header.store_uuid, out.begin() + 16);
  PutLittleEndian(out, 32, header.segment_id);
  PutLittleEndian(out, 40, header.step);
  PutLittleEndian(out, 48, header.rank);
  PutLittleEndian(out, 52, header.epoch);
  PutLittleEndian(out, 56, header.created_unix_ns);
  PutLittleEndian(out, 64, header.id_tail);
  PutChecksum(out);
  CAIRN_CHECK(DecodeSegmentHeader(out).has_value());
}

Result<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte, kSegmentHeaderBytes> bytes) {
  CAIRN_TRY(CheckFrame(bytes, kHeaderMagic, "header"));
  SegmentHeader header;
  std::ranges::copy(bytes.subspan(16, 16), header.store_uuid.begin());
  header.segment_id = GetLittleEndian<uint64_t>(bytes, 32);
  header.step = GetLittleEndian<uint64_t>(bytes, 40);
  header.rank = GetLittleEndian<uint32_t>(bytes, 48);
  header.epoch = GetLittleEndian<uint32_t>(bytes, 52);
  header.created_unix_ns = GetLittleEndian<int64_t>(bytes, 56);
  header.id_tail = GetLittleEndian<uint32_t>(bytes, 64);
  return header;
}

void EncodeSegmentTrailer(const SegmentTrailer& trailer,
                          std::span<std::byte, kSegmentTrailerBytes> out) {
  std::ranges::fill(out, std::byte{0});
  std::memcpy(out.data(), kTrailerMagic, 8);
  PutLittleEndian<uint32_t>(out, 8, kSegmentVersion);
  PutLittleEndian<uint32_t>(out, 12, kXxh3);
  PutLittleEndian(out, 16, trailer.payload_end_bytes);
  PutLittleEndian(out, 24, trailer.page_digests_offset_bytes);
  PutLittleEndian(out, 32, trailer.page_digest_count);
  PutLittleEndian(out, 40, trailer.footer_bytes);
  PutLittleEndian(out, 48, trailer.page_digests_checksum);
  PutLittleEndian(out, 56, trailer.footer_digest);
  PutLittleEndian(out, 64, trailer.segment_id);
  PutChecksum(out);
}

Result<SegmentTrailer> DecodeSegmentTrailer(std::span<const std::byte, kSegmentTrailerBytes> bytes,
                                            uint64_t file_bytes) {
  CAIRN_TRY(CheckFrame(bytes, kTrailerMagic, "trailer"));
  CAIRN_TRY(CheckDigestKind(GetLittleEndian<uint32_t>(bytes, 12), "the segment"));
  SegmentTrailer trailer{
      .segment_id = GetLittleEndian<uint64_t>(bytes, 64),
      .payload_end_bytes = GetLittleEndian<uint64_t>(bytes, 16),
      .page_digests_offset_bytes = GetLittleEndian<uint64_t>(bytes, 24),
      .page_digest_count = GetLittleEndian<uint64_t>(bytes, 32),
      .footer_bytes = GetLittleEndian<uint64_t>(bytes, 40),
      .page_digests_checksum = GetLittleEndian<uint64_t>(bytes, 48),
      .footer_digest = GetLittleEndian<uint64_t>(bytes, 56),
  };
  const uint64_t limit = file_bytes - kSegmentTrailerBytes;
  const bool ordered =
      kSegmentHeaderBytes <= trailer.payload_end_bytes &&
      trailer.payload_end_bytes <= trailer.page_digests_offset_bytes &&
      trailer.page_digests_offset_bytes <= limit &&
      trailer.page_digest_count <= (limit - trailer.page_digests_offset_bytes) / 8 &&
      trailer.footer_bytes <= limit - trailer.footer_offset_bytes();
  if (!ordered) {
    return Fail(ErrorCode::kDataLoss,
                "the segment's trailer refers to parts that the file does not contain");
  }
  return trailer;
}

// FlatBufferBuilder needs all of a buffer in memory, and searches for the vtable of every table. So
// it writes only the head, which ends with the offsets of the entries. After it there are the
// vtable of the entries, and of each entry its table, its key and its value.
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kFooterPieceBytes = 64 << 10;
using FooterEntries =
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::FooterEntry>>>;
using FooterTable = std::array<uint32_t, 4>;  // to the vtable, to the key, to the value, column
/// Length of the vtable, of the table, and the positions of the fields in it; then padding.
constexpr std::array<uint16_t, 6> kFooterVtable = {10, sizeof(FooterTable), 12, 4, 8};

/// Length of a vector, with zeros after it up to a multiple of 4.
uint32_t VectorBytes(uint64_t length_bytes) {
  return static_cast<uint32_t>(sizeof(uint32_t) + RoundUp(length_bytes, sizeof(uint32_t)));
}

uint32_t FooterEntryBytes(const TableRecord& record) {
  return sizeof(FooterTable) + VectorBytes(record.key.size() - 1) +
         VectorBytes(record.value.size());
}

void PutVector(std::span<const std::byte> bytes, std::byte* target) {
  const auto length_bytes = static_cast<uint32_t>(bytes.size());
  std::memset(target + VectorBytes(length_bytes) - sizeof(uint32_t), 0, sizeof(uint32_t));
  std::memcpy(target, &length_bytes, sizeof(length_bytes));
  if (!bytes.empty()) std::memcpy(target + sizeof(length_bytes), bytes.data(), bytes.size());
}

}  // namespace

Result<void> EncodeSegmentFooter(const SegmentHeader& header, const std::string& attempt,
                                 const RecordList& records, const FooterCallback& put) {
  std::vector<uint32_t> offsets;  // from the place of the offset
  offsets.reserve(records.count());
  uint32_t position = sizeof(kFooterVtable);  // after the head
  CAIRN_TRY(records.ForEach([&](const uint64_t* words) -> Result<void> {
    const uint64_t rest_count = records.count() - offsets.size();
    offsets.push_back(position + static_cast<uint32_t>(rest_count * sizeof(uint32_t)));
    position += FooterEntryBytes(RecordAt(words));
    return {};
  }));
  flatbuffers::FlatBufferBuilder builder(offsets.size() * sizeof(uint32_t) + 1024);
  const auto entries = builder.CreateVector(offsets);  // the first object is the end of the buffer
  const auto uuid = builder.CreateVector(reinterpret_cast<const uint8_t*>(header.store_uuid.data()),
                                         header.store_uuid.size());
  const auto root = schema::CreateSegmentFooter(
      builder, schema::kRecordVersion, header.segment_id, uuid, header.step, header.rank,
      builder.CreateString(attempt), FooterEntries(entries.o));
  schema::FinishSegmentFooterBuffer(builder, root);
  CAIRN_TRY(put(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()))));

  CAIRN_TRY(put(std::as_bytes(std::span(kFooterVtable))));
  std::vector<std::byte> piece(kFooterPieceBytes);
  size_t used_bytes = 0;
  position = sizeof(kFooterVtable);
  CAIRN_TRY(records.ForEach([&](const uint64_t* words) -> Result<void> {
    const TableRecord record = RecordAt(words);
    const uint32_t entry_bytes = FooterEntryBytes(record);
    if (piece.size() - used_bytes < entry_bytes) {
      CAIRN_TRY(put(std::span(piece).first(std::exchange(used_bytes, 0))));
      piece.resize(std::max<size_t>(piece.size(), entry_bytes));
    }
    const std::string_view key = record.key.substr(1);
    const uint32_t key_bytes = VectorBytes(key.size());
    const FooterTable table = {position, sizeof(FooterTable) - 4,
                               static_cast<uint32_t>(sizeof(FooterTable)) - 8 + key_bytes,
                               static_cast<uint8_t>(record.column())};
    std::byte* const target = &piece[used_bytes];
    std::memcpy(target, table.data(), sizeof(table));
    PutVector(std::as_bytes(std::span(key)), target + sizeof(table));
    PutVector(record.value, target + sizeof(table) + key_bytes);
    position += entry_bytes;
    used_bytes += entry_bytes;
    return {};
  }));
  return put(std::span(piece).first(used_bytes));
}

Result<std::vector<FooterEntry>> DecodeSegmentFooter(std::span<const std::byte> bytes,
                                                     uint64_t segment_id) {
  CAIRN_TRY_ASSIGN(const schema::SegmentFooter* footer,
                   CheckedRecord<schema::SegmentFooter>(bytes, schema::SegmentFooterIdentifier(),
                                                        "SegmentFooter"));
  if (footer->segment_id() != segment_id) {
    return Fail(ErrorCode::kDataLoss, "the footer belongs to another segment");
  }
  std::vector<FooterEntry> entries;
  if (footer->entries() == nullptr) return entries;
  entries.reserve(footer->entries()->size());
  uint64_t copied_bytes = 0;
  for (const schema::FooterEntry* entry : *footer->entries()) {
    if (entry->key() == nullptr || entry->value() == nullptr) {
      return Fail(ErrorCode::kDataLoss, "the footer contains an entry without key or value");
    }
    // Entries of a hostile footer may refer to the same bytes, which would be copied for each.
    copied_bytes += uint64_t{entry->key()->size()} + entry->value()->size();
    if (copied_bytes > bytes.size()) {
      return Fail(ErrorCode::kDataLoss, "the entries of the footer are longer than it");
    }
    const auto* value = reinterpret_cast<const std::byte*>(entry->value()->data());
    entries.push_back({.column = static_cast<Column>(entry->column()),
                       .key = std::string(reinterpret_cast<const char*>(entry->key()->data()),
                                          entry->key()->size()),
                       .value = std::vector<std::byte>(value, value + entry->value()->size())});
  }
  return entries;
}

Result<std::string> DecodeFooterAttempt(std::span<const std::byte> bytes) {
  CAIRN_TRY_ASSIGN(const schema::SegmentFooter* footer,
                   CheckedRecord<schema::SegmentFooter>(bytes, schema::SegmentFooterIdentifier(),
                                                        "SegmentFooter"));
  return BoundedText(footer->attempt());
}

namespace {

Result<void> ReadRegion(const ObjectReader& file, uint64_t offset_bytes, uint64_t checksum,
                        const char* what, std::span<std::byte> target) {
  CAIRN_TRY(file.ReadAt(offset_bytes, target));
  if (Checksum64(target) == checksum) return {};
  return Fail(ErrorCode::kDataLoss,
              fmt::format("the segment's {} do not match their checksum", what), file.path(),
              offset_bytes);
}

Result<std::vector<Extent>> ExtentsOf(const ObjectReader& file, const SegmentTrailer& trailer,
                                      const std::vector<FooterEntry>& entries) {
  std::vector<Extent> extents;
  for (const FooterEntry& entry : entries) {
    if (entry.column != Column::kChunks) continue;
    CAIRN_TRY_ASSIGN(const ChunkExtents of_chunk, DecodeChunkExtents(entry.value));
    // The other extents of the chunk are in older segments.
    of_chunk.ForEach([&](const Extent& extent) {
      if (extent.segment_id == trailer.segment_id) extents.push_back(extent);
    });
  }
  std::ranges::sort(extents, {}, &Extent::offset_bytes);
  // Chunks with equal bytes may share them.
  const auto repeated = std::ranges::unique(extents);
  extents.erase(repeated.begin(), repeated.end());
  uint64_t at = kSegmentHeaderBytes;
  for (const Extent& extent : extents) {
    if (extent.offset_bytes < at || extent.length_bytes > trailer.payload_end_bytes ||
        extent.offset_bytes > trailer.payload_end_bytes - extent.length_bytes) {
      return Fail(ErrorCode::kDataLoss,
                  "the footer lists chunks that overlap or are not inside the payload", file.path(),
                  extent.offset_bytes);
    }
    at = extent.offset_bytes + extent.length_bytes;
  }
  return extents;
}

}  // namespace

Result<void> CheckZeros(std::span<const std::byte> bytes, uint64_t offset_bytes,
                        const std::string& path) {
  const auto bad = std::ranges::find_if(bytes, [](std::byte byte) { return byte != std::byte{0}; });
  if (bad == bytes.end()) return {};
  return Fail(ErrorCode::kDataLoss, "a gap of the segment is not zero", path,
              offset_bytes + static_cast<uint64_t>(bad - bytes.begin()));
}

Result<SegmentDescription> ReadSegmentDescription(const ObjectReader& file, const Uuid& uuid,
                                                  const SegmentInfo& info) {
  SegmentDescription segment;
  const uint64_t file_bytes = file.size_bytes();
  if (file_bytes != info.file_bytes || file_bytes < kSegmentHeaderBytes + kSegmentTrailerBytes) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("the segment has {} bytes, but was sealed with {}", file_bytes,
                            info.file_bytes));
  }
  std::array<std::byte, kSegmentHeaderBytes> header_bytes;
  CAIRN_TRY(file.ReadAt(0, header_bytes));
  CAIRN_TRY_ASSIGN(segment.header, DecodeSegmentHeader(header_bytes));
  const uint64_t trailer_at = file_bytes - kSegmentTrailerBytes;
  std::array<std::byte, kSegmentTrailerBytes> trailer_bytes;
  CAIRN_TRY(file.ReadAt(trailer_at, trailer_bytes));
  auto trailer = DecodeSegmentTrailer(trailer_bytes, file_bytes);
  if (!trailer) return Fail(std::move(trailer).error().WithOffset(trailer_at));
  segment.trailer = *trailer;
  if (segment.header.id() != IdOf(info) || trailer->segment_id != info.segment_id ||
      segment.header.store_uuid != uuid || trailer->footer_digest != info.footer_digest ||
      trailer->page_digests_checksum != info.page_digests_checksum) {
    return Fail(ErrorCode::kDataLoss, "the segment is not the one to which its record refers");
  }
  const uint64_t footer_at = trailer->footer_offset_bytes();
  const uint64_t footer_end = footer_at + trailer->footer_bytes;
  if (trailer->page_digests_offset_bytes !=
          RoundUp(trailer->payload_end_bytes, kSegmentAlignBytes) ||
      file_bytes != RoundUp(footer_end + kSegmentTrailerBytes, kSegmentAlignBytes)) {
    return Fail(ErrorCode::kDataLoss, "the parts of the segment are not aligned to 4 KiB");
  }
  segment.page_digests.resize(trailer->page_digest_count);
  CAIRN_TRY(ReadRegion(file, trailer->page_digests_offset_bytes, trailer->page_digests_checksum,
                       "page digests", std::as_writable_bytes(std::span(segment.page_digests))));
  segment.footer.resize(trailer->footer_bytes);
  CAIRN_TRY(ReadRegion(file, footer_at, trailer->footer_digest, "footer records", segment.footer));
  CAIRN_TRY_ASSIGN(const std::vector<FooterEntry> entries,
                   DecodeSegmentFooter(segment.footer, info.segment_id));
  std::vector<std::byte> gap(trailer_at - footer_end);
  CAIRN_TRY(file.ReadAt(footer_end, gap));
  CAIRN_TRY(CheckZeros(gap, footer_end, file.path()));
  CAIRN_TRY_ASSIGN(segment.extents, ExtentsOf(file, *trailer, entries));
  return segment;
}

}  // namespace cairn::kv::internal
