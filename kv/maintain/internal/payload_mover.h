#pragma once
/// Copies payload of a store into new segments.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/copy_options.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"
#include "kv/maintain/compact_options.h"
#include "kv/maintain/internal/live_ranges.h"
#include "kv/read/snapshot.h"
#include "kv/segment/internal/segment_stream.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// The state that the phases of one compaction share. Ownership: all members outlive the phases.
struct CompactContext {
  StoreState& state;
  const CompactOptions& options;
  Throttle& throttle;
  std::function<Result<void>(uint64_t moved_bytes)> progress;
  /// If set, reads the pages that are moved, and their digests.
  std::function<Result<void>(const Extent& pages, std::span<std::byte> bytes,
                             std::span<uint64_t> page_digests)>
      read_pages;
};

/// Returns the length of an element of the chunk; 1 if its record contradicts itself.
uint32_t ElementBytes(const ChunkEntry& entry);

/// The destructor removes the segments unless Keep was called. Memory: 16 MiB, or the largest delta
/// or chunk that is decoded, and a few blocks; to compress, twice a chunk per core, at most 8.
/// Threads: one.
class PayloadMover {
 public:
  /// `name` identifies the compaction in its segments.
  PayloadMover(const CompactContext& context, std::shared_ptr<const Snapshot> snapshot,
               const std::string& name);
  ~PayloadMover();
  PayloadMover(const PayloadMover&) = delete;
  PayloadMover& operator=(const PayloadMover&) = delete;

  // Each sets `moved_to` of what it copies. All pointers must remain valid until Seal returns.
  // kDataLoss: a page or a chunk does not match its digest.
  /// Copies the ranges, in this order.
  Result<void> Move(std::span<LiveRange* const> ranges);
  /// Copies the chunks, in this order, without their deltas, and compressed if that makes them
  /// clearly shorter. If chunks are compressed, leaves out those that it does not change.
  Result<void> Rewrite(std::span<ChunkVersion* const> chunks);
  /// Makes the new segments durable under their names. Until then, `moved_to` cannot be used.
  Result<void> Seal();
  const std::vector<SegmentInfo>& segments() const { return stream_.sealed(); }
  /// The segments belong to committed steps.
  void Keep() { is_kept_ = true; }

 private:
  struct Piece;  // a part of a range that is read at once
  Result<void> MoveBatch(std::span<const Piece> batch);
  /// Appends bytes that were verified. The position goes to `moved_to` when the segment is sealed.
  Result<void> Append(std::span<const std::byte> bytes, SegmentAlignment alignment,
                      std::span<const uint64_t> page_digests, uint8_t page_bits,
                      std::string_view key, std::vector<Extent>& moved_to);
  /// Returns the chunk without its deltas, verified.
  Result<std::vector<std::byte>> ReadChunk(const ChunkVersion& chunk,
                                           std::vector<uint64_t>& page_digests) const;
  Result<void> AwaitTurn(uint64_t bytes);
  Result<void> OnRecord(const TableRecord& record);

  const CompactContext& context_;
  const std::shared_ptr<const Snapshot> snapshot_;
  const uint64_t batch_bytes_;  // after which a batch is moved
  BlockPool blocks_;
  SegmentStream stream_;
  std::deque<std::vector<Extent>*> pending_;  // extents that the stream has not returned
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> page_digests_;
  bool is_kept_ = false;
};

}  // namespace cairn::kv::internal
