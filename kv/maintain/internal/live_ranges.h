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

struct ChunkVersion;

/// Payload that is moved as a whole: extents of several steps that overlap.
struct LiveRange {
  Extent extent;
  uint64_t order = 0;       // position of the first chunk that uses it
  std::string key;          // key of this chunk
  bool is_delta = false;    // must remain in one piece
  bool is_aligned = false;  // begins at a multiple of 4 KiB
  /// The only version that uses it; null if it is used by several, or by a chunk that is not listed
  /// as a version.
  const ChunkVersion* only_user = nullptr;
  bool is_replaced = false;      // not needed any more
  std::vector<Extent> moved_to;  // in order
};

/// A chunk that may be written in another form, and what replaces it.
struct ChunkVersion {
  std::string key;
  ChunkEntry entry;
  uint64_t order = 0;
  bool is_compressible = false;
  bool is_compressed = false;    // moved_to is a delta of zeros
  std::vector<Extent> moved_to;  // its bytes, without deltas; empty: its bytes are moved unchanged
};

/// Threads: one.
class LiveRanges {
 public:
  /// Collects what is stored in `segments`. Chunks with deltas are listed as versions, and with
  /// `with_raw` those without deltas, too.
  LiveRanges(std::set<uint64_t> segments, bool with_raw);

  /// Whether chunks with an extent in the segment may have been moved.
  bool Contains(uint64_t segment_id) const { return segments_.contains(segment_id); }
  /// Adds the chunks of one step after another, in the order in which they are to be stored.
  /// Returns the version of the chunk; null if it is not listed as one. kDataLoss: its extents
  /// contradict the extents of another chunk.
  Result<ChunkVersion*> Add(std::string_view key, const ChunkEntry& entry);
  /// Lists a chunk as a version, and returns it. Does not add what is stored of it.
  ChunkVersion& AddVersion(std::string_view key, const ChunkEntry& entry);
  /// Adds the segments of a chunk that is written in another form to these segments.
  void AddSegmentsOf(const ChunkExtents& extents);
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

  /// Returns the extents of a chunk after the move; nothing if they are the same. What was not
  /// added remains in its place.
  std::optional<ChunkExtents> Moved(const ChunkExtents& extents) const;

 private:
  using ByOffset = std::map<uint64_t, LiveRange>;
  /// Of chunks with different extents, these usually differ.
  using LastPlace = std::pair<uint64_t, uint64_t>;  // segment and offset of the last extent
  Result<void> AddExtent(LiveRange added);
  const LiveRange* Find(const Extent& extent) const;
  const LiveRange* FindUsedBy(const ChunkVersion& version, const Extent& extent) const;
  /// Returns the version with these extents, or null.
  template <typename Versions>
  static auto* FindIn(Versions& versions, const ChunkExtents& extents);
  template <typename Predicate>
  std::vector<ChunkVersion*> VersionsWith(const Predicate& predicate);
  void AppendMoved(const Extent& extent, std::vector<Extent>& moved) const;

  static LastPlace LastPlaceOf(const ChunkExtents& extents);

  std::set<uint64_t> segments_;
  const bool with_raw_;
  std::map<uint64_t, ByOffset> ranges_;  // by segment
  std::multimap<LastPlace, ChunkVersion> versions_;
  uint64_t next_order_ = 0;
};

}  // namespace cairn::kv::internal
