#pragma once
/// Everything in a sealed segment except for its payload: header, page digests, footer and trailer.

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_record.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/storage/internal/object_reader.h"

namespace cairn::kv::internal {

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
