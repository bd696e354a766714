#pragma once
/// Header, trailer and footer of a segment file (docs/format/segment.md).
///
///   [0, 4096)                 header
///   [4096, payload_end)       payload; gaps are zero
///   [page_digests_offset, ..) page digests, u64 little-endian; page_digests_offset is payload_end,
///                             rounded up to 4096
///   directly after them       SegmentFooter, a FlatBuffer
///   last 80 bytes             trailer, after zeros up to a file length that is a multiple of 4096
///
/// A SegmentDescription is everything in a sealed segment except for its payload.

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/base/key.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/internal/object_reader.h"
#include "kv/table/internal/record_run.h"

namespace cairn::kv::internal {

inline constexpr uint32_t kSegmentVersion = 3;
inline constexpr uint64_t kSegmentHeaderBytes = 4096;
inline constexpr uint64_t kSegmentTrailerBytes = 80;
/// A segment is sealed when it reaches one of these limits, which bound the memory for page digests
/// and footer.
inline constexpr uint64_t kMaxSegmentPayloadBytes = 4ull << 30;
inline constexpr uint64_t kMaxSegmentEntries = 65'536;

struct SegmentHeader {
  Uuid store_uuid{};
  uint64_t segment_id = 0;
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t epoch = 0;
  int64_t created_unix_ns = 0;
  uint32_t id_tail = 0;

  ObjectId id() const { return {.epoch = epoch, .id = segment_id, .id_tail = id_tail}; }
};

struct SegmentTrailer {
  uint64_t segment_id = 0;
  uint64_t payload_end_bytes = 0;
  uint64_t page_digests_offset_bytes = 0;
  uint64_t page_digest_count = 0;
  uint64_t footer_bytes = 0;
  uint64_t page_digests_checksum = 0;
  uint64_t footer_digest = 0;

  uint64_t footer_offset_bytes() const { return page_digests_offset_bytes + 8 * page_digest_count; }
};

/// A record about payload of the segment, as tables have it.
struct FooterEntry {
  Column column = Column::kChunks;
  std::string key;
  std::vector<std::byte> value;
};

void EncodeSegmentHeader(const SegmentHeader& header,
                         std::span<std::byte, kSegmentHeaderBytes> out);
/// kDataLoss: the magic or the checksum is wrong. kUnimplemented: the version is newer. The caller
/// adds the file to the error.
Result<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte, kSegmentHeaderBytes> bytes);

void EncodeSegmentTrailer(const SegmentTrailer& trailer,
                          std::span<std::byte, kSegmentTrailerBytes> out);
/// Also checks that the parts are inside `file_bytes`, in their order. kDataLoss: they are not, or
/// the magic or the checksum is wrong. kUnimplemented: the version is newer, or the kind of the
/// digests is unknown.
Result<SegmentTrailer> DecodeSegmentTrailer(std::span<const std::byte, kSegmentTrailerBytes> bytes,
                                            uint64_t file_bytes);

/// Passes the footer to `put`, piece by piece, because it may have many MiB. Requires records of
/// less than 2 GiB together. Returns the errors of `put`.
using FooterCallback = std::function<Result<void>(std::span<const std::byte> piece)>;
Result<void> EncodeSegmentFooter(const SegmentHeader& header, const std::string& attempt,
                                 const RecordList& records, const FooterCallback& put);
/// kDataLoss: the footer is damaged or belongs to another segment. kUnimplemented: its version is
/// newer.
Result<std::vector<FooterEntry>> DecodeSegmentFooter(std::span<const std::byte> bytes,
                                                     uint64_t segment_id);
/// Returns the name of the attempt that wrote the segment. Has the same errors.
Result<std::string> DecodeFooterAttempt(std::span<const std::byte> bytes);

// The names that the segments of a compaction have in place of an attempt's name. Their footers
// list ranges that several steps use, from which no step can be recovered.

inline std::string CompactionName(std::string_view session, uint64_t id) {
  return fmt::format("{}-compact-{:016x}", session, id);
}
inline bool IsCompactionName(std::string_view attempt) { return attempt.contains("-compact-"); }

struct SegmentDescription {
  SegmentHeader header;
  SegmentTrailer trailer;
  std::vector<uint64_t> page_digests;
  std::vector<std::byte> footer;
  /// The ranges of payload that the chunks in the footer have in this segment, ascending by offset,
  /// without overlaps, and inside the payload. The bytes between them are zero.
  std::vector<Extent> extents;
};

/// Reads and verifies the description of the segment to which `info` refers, in the store `uuid`.
/// Does not read the payload. kDataLoss: it is damaged, is not this segment, or its footer lists
/// chunks that overlap or are not inside the payload. kUnimplemented: its version is newer.
/// kNotFound, kUnavailable: it cannot be read. Memory: page digests and footer.
Result<SegmentDescription> ReadSegmentDescription(const ObjectReader& file, const Uuid& uuid,
                                                  const SegmentInfo& info);

/// Checks that bytes [begin, end) are zero. `offset_bytes` is the position of `bytes` in the
/// segment `path`. kDataLoss names the first byte that is not.
Result<void> CheckZeros(std::span<const std::byte> bytes, uint64_t offset_bytes,
                        const std::string& path);

}  // namespace cairn::kv::internal
