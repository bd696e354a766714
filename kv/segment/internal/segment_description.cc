// Reads the trailer first: it has the positions of the other parts.

#include "kv/segment/internal/segment_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/root/internal/kv_records.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kAlignBytes = 4096;

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
  if (trailer->page_digests_offset_bytes != RoundUp(trailer->payload_end_bytes, kAlignBytes) ||
      file_bytes != RoundUp(footer_end + kSegmentTrailerBytes, kAlignBytes)) {
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
