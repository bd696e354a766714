#pragma once
/// Where the bytes of a chunk lie: runs of its pages in segments.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/error.h"

namespace cairn::schema {
struct ChunkRecord;
}

namespace cairn::kv {

/// Run of payload bytes in one segment.
struct Extent {
  uint64_t segment_id = 0;
  uint64_t offset_bytes = 0;         // from the start of the segment file
  uint64_t length_bytes = 0;         // whole pages, but where the chunk ends
  uint64_t page_digests_offset_bytes = 0;  // of its first page's digest, in the same file
  friend bool operator==(const Extent&, const Extent&) = default;

  /// What is left of the run behind its first `skipped_bytes`, which are whole pages of it.
  Extent From(uint64_t skipped_bytes) const;
  /// The first `bytes` of the run. Requires at most its length.
  Extent First(uint64_t bytes) const;
  /// True if `next` goes on where this ends: payload and page digests alike.
  bool IsFollowedBy(const Extent& next) const;
};

/// The runs of one chunk, in the order of its payload. Nearly every chunk has one, which takes no
/// memory of its own. Threads: as a value.
class Extents {
 public:
  /// A chunk without bytes.
  Extents() = default;
  Extents(const Extent& only) : first_(only) {}  // NOLINT(google-explicit-constructor): one is many
  /// Requires at least one; runs that follow each other become one.
  explicit Extents(std::span<const Extent> runs);

  std::span<const Extent> all() const {
    return several_.empty() ? std::span(&first_, 1) : std::span(several_);
  }
  size_t size() const { return all().size(); }
  const Extent& front() const { return all().front(); }
  const Extent& back() const { return all().back(); }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }

  /// Of the chunk.
  uint64_t length_bytes() const;
  /// What follows from byte `begin_bytes` of the chunk on, up to the end of that run. Requires the
  /// beginning of a page that the chunk has.
  Extent At(uint64_t begin_bytes) const;

  friend bool operator==(const Extents& a, const Extents& b);

 private:
  Extent first_;
  std::vector<Extent> several_;  // all of them, or none where there is only first_
};

/// Where a verified record says that the chunk's bytes lie. kDataLoss: impossible sizes, or runs
/// that are no whole pages.
Result<Extents> ReadExtents(const schema::ChunkRecord& chunk);

}  // namespace cairn::kv
