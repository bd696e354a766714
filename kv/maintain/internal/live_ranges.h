#pragma once
/// The payload that steps use of some segments, and where it was moved to.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/root/internal/kv_records.h"

namespace cairn::kv::internal {

class PayloadMoves {
 public:
  virtual ~PayloadMoves() = default;
  /// Whether chunks with an extent in the segment may have been moved.
  virtual bool Contains(uint64_t segment_id) const = 0;
  /// Returns the extents of a chunk after the move; nothing if they are the same.
  virtual std::optional<ChunkExtents> Moved(const ChunkExtents& extents) const = 0;
};

/// Identifies the bytes of a chunk: the segment and the offset of its last delta, or of its only
/// extent.
using VersionId = std::pair<uint64_t, uint64_t>;

/// Payload that is moved as a whole: extents of several steps that overlap.
struct LiveRange {
  Extent extent;
  uint64_t order = 0;       // position of the first chunk that uses it
  std::string key;          // key of this chunk
  bool is_delta = false;    // must remain in one piece
  bool is_aligned = false;  // begins at a multiple of 4 KiB
  /// The only version that uses it; nothing if it is used by several, or by a chunk that is not
  /// listed as a version.
  std::optional<VersionId> only_user;
  bool is_replaced = false;      // not needed any more
  std::vector<Extent> moved_to;  // in order
};

/// A chunk with deltas, or, if chunks are compressed, one without deltas; and what replaces it.
struct ChunkVersion {
  std::string key;
  ChunkEntry entry;
  uint64_t order = 0;
  bool is_compressible = false;
  bool is_compressed = false;    // moved_to is a delta of zeros
  std::vector<Extent> moved_to;  // its bytes, without deltas; empty: its bytes are moved unchanged
};

/// Threads: one.
class LiveRanges final : public PayloadMoves {
 public:
  /// Collects what is stored in `segments`. `with_raw`: chunks without deltas are versions, too.
  LiveRanges(std::set<uint64_t> segments, bool with_raw);

  bool Contains(uint64_t segment_id) const override { return segments_.contains(segment_id); }
  /// Adds the chunks of one step after another, in the order in which they are to be stored.
  /// kDataLoss: its extents contradict the extents of another chunk.
  Result<void> Add(std::string_view key, const ChunkEntry& entry);
  /// Forgets the segments that are not in `segments`.
  void Keep(const std::set<uint64_t>& segments);
  /// Returns how many bytes of a segment are used.
  uint64_t live_bytes(uint64_t segment_id) const;

  /// Returns the chunks with deltas of at most `max_bytes` whose earlier version is in these
  /// segments and has no other user, in the order in which they were added.
  std::vector<ChunkVersion*> Foldable(uint64_t max_bytes);
  /// Returns the chunks without deltas of 4 KiB to `max_bytes` in these segments whose bytes have
  /// no other user, in the order in which they were added.
  std::vector<ChunkVersion*> Compressible(uint64_t max_bytes);
  /// Marks the ranges that only such a chunk uses as replaced.
  void Replace(const ChunkVersion& chunk);
  /// Returns the ranges that are not replaced, in the order in which they were added.
  std::vector<LiveRange*> InOrder();

  std::optional<ChunkExtents> Moved(const ChunkExtents& extents) const override;

 private:
  using ByOffset = std::map<uint64_t, LiveRange>;
  Result<void> AddExtent(LiveRange added);
  const LiveRange* Find(const Extent& extent) const;
  const LiveRange* FindUsedBy(const VersionId& version, const Extent& extent) const;
  void AppendMoved(const Extent& extent, std::vector<Extent>& moved) const;

  static VersionId IdOf(const ChunkExtents& extents);

  std::set<uint64_t> segments_;
  const bool with_raw_;
  std::map<uint64_t, ByOffset> ranges_;  // by segment
  std::map<VersionId, ChunkVersion> versions_;
  uint64_t next_order_ = 0;
};

}  // namespace cairn::kv::internal
