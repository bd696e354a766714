#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Where the bytes of a chunk are stored: ranges of its pages in segments, and deltas.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/error.h"

namespace cairn::schema {
struct ChunkRecord;
}

namespace cairn::kv {

/// A contiguous range of payload in one segment.
struct Extent {
  uint64_t segment_id = 0;
  uint64_t offset_bytes = 0;  // from the start of the segment file
  uint64_t length_bytes = 0;  // a multiple of the page size, except at the end of the chunk
  uint64_t page_digests_offset_bytes = 0;  // position of its first page's digest, in the file
  uint8_t page_bits = kPageBits;           // log2 of the page size, that of its chunk
  friend bool operator==(const Extent&, const Extent&) = default;

  /// Returns an extent whose bytes are zeros, and which is stored nowhere: its segment is 0, which
  /// does not exist.
  static Extent Zeros(uint64_t length_bytes) { return {.length_bytes = length_bytes}; }
  bool is_zeros() const { return segment_id == 0; }
  uint64_t page_bytes() const { return uint64_t{1} << page_bits; }
  uint64_t page_count() const { return PageCount(length_bytes, page_bytes()); }

  /// Returns the extent without its first `skipped_bytes`. Requires a multiple of the page size
  /// below the length.
  Extent From(uint64_t skipped_bytes) const;
  /// Returns the first `bytes` of the extent. Requires `bytes <= length_bytes`.
  Extent First(uint64_t bytes) const;
  /// Returns whether `next` directly follows this extent, with its payload and its page digests.
  bool IsFollowedBy(const Extent& next) const;
};

/// The extents of one chunk, in the order of its payload. Nearly every chunk has one extent, which
/// is stored without an allocation. Threads: as for a value.
class Extents {
 public:
  /// The extents of an empty chunk.
  Extents() = default;
  Extents(const Extent& only) : first_(only) {}  // NOLINT(google-explicit-constructor): one is many
  /// Joins extents that directly follow each other. Requires at least one, and one page size.
  explicit Extents(std::span<const Extent> extents);

  std::span<const Extent> all() const {
    return several_.empty() ? std::span(&first_, 1) : std::span(several_);
  }
  size_t size() const { return all().size(); }
  const Extent& front() const { return all().front(); }
  const Extent& back() const { return all().back(); }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }

  /// Length of the chunk.
  uint64_t length_bytes() const;
  uint64_t page_bytes() const { return first_.page_bytes(); }
  uint64_t page_count() const { return PageCount(length_bytes(), page_bytes()); }
  /// Returns the part of an extent that begins with byte `begin_bytes` of the chunk. Requires that
  /// this byte is in the chunk and begins a page.
  Extent At(uint64_t begin_bytes) const;

  friend bool operator==(const Extents& a, const Extents& b);

 private:
  Extent first_;
  std::vector<Extent> several_;  // all of them; empty if first_ is the only one
};

/// The largest number of deltas that a chunk may have.
inline constexpr size_t kMaxDeltas = 64;
/// Length of the longest chunk that may have deltas.
inline constexpr uint64_t kMaxBytesWithDeltas = uint64_t{1} << 30;

/// Everything that is stored of one chunk. Without deltas, `payload` is its bytes. Otherwise it is
/// the bytes of an earlier version of the same length, and each delta leads from one version to the
/// next. Deltas are opaque here: they have page digests as payload has, but of their own bytes. The
/// payload of a compressed chunk is zeros, which are stored nowhere. With deltas, a page has
/// kPageBytes.
struct ChunkExtents {
  ChunkExtents() = default;
  ChunkExtents(Extents all) : payload(std::move(all)) {}  // NOLINT(google-explicit-constructor)
  ChunkExtents(const Extent& only) : payload(only) {}     // NOLINT(google-explicit-constructor)

  Extents payload;
  std::vector<Extent> deltas;  // in the order in which they are applied

  /// True if the bytes come from deltas alone: `payload` is zeros.
  bool is_compressed() const { return payload.front().is_zeros(); }

  /// Calls `visit` with each extent that is stored.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const Extent& extent : payload) {
      if (!extent.is_zeros()) visit(extent);
    }
    for (const Extent& extent : deltas) visit(extent);
  }
  friend bool operator==(const ChunkExtents&, const ChunkExtents&) = default;
};

/// Returns the extents in a verified record. kDataLoss: sizes are impossible, or an extent of the
/// payload that is not the last one has a length that is not a multiple of the page size.
/// kUnimplemented: names a kind of digest or a codec that this version does not know.
Result<ChunkExtents> ReadExtents(const schema::ChunkRecord& chunk);

}  // namespace cairn::kv
