#pragma once
/// Committed steps as they were at one moment: records and payload.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/digest.h"
#include "kv/error.h"
#include "kv/key.h"
#include "kv/mapping.h"
#include "kv/read_range.h"
#include "kv/step_info.h"

namespace cairn::kv {

namespace internal {
struct SnapshotState;
}  // namespace internal

/// A consistent view of the committed steps. Immutable; safe from many threads; may outlive the
/// Store. Payload of a step that is deleted meanwhile may become unreadable: reads then say
/// kNotFound.
class Snapshot {
 public:
  ~Snapshot();
  /// Ascending by step.
  const std::vector<StepInfo>& steps() const;
  /// The step, or the latest. kNotFound names the steps that exist.
  Result<StepInfo> FindStep(std::optional<uint64_t> step) const;

  /// Records of one generation whose key begins with `prefix`, in key order. Verified by the
  /// caller.
  Result<void> Scan(Column column, uint64_t generation, std::string_view prefix,
                    const ScanCallback& callback) const;
  /// The record bytes (aligned for FlatBuffers), or nothing.
  Result<std::optional<std::vector<std::byte>>> Get(Column column, uint64_t generation,
                                                    std::string_view key) const;
  Result<std::optional<std::vector<std::byte>>> GetStructure(const Digest& digest) const;

  Result<SegmentInfo> FindSegment(uint64_t segment_id) const;
  Result<std::vector<SegmentInfo>> Segments() const;
  Result<std::vector<Usage>> SegmentUsage() const;

  /// Reads many ranges with deep queues and bounded memory (the pool of IoOptions), O_DIRECT unless
  /// the page cache has the bytes; neighbouring ranges become one request. `arrived(i, bytes)` is
  /// called once the bytes of ranges[i] are there, all of them, so that the caller can verify them
  /// while hot; an error from it ends the read. No digest is checked here. With `threads` above 1
  /// the work is shared by at most so many threads, this one among them, and `arrived` may be
  /// called from several at once. kDataLoss: a segment is missing or too short. Returns the bytes
  /// taken from storage.
  Result<uint64_t> Read(std::span<const ReadRange> ranges, uint32_t threads,
                        const RangeCallback& arrived) const;

  /// Maps a whole segment, lazily paged in and shared with the page cache. Writes through it stay
  /// in this process. Offsets are those of an Extent.
  Result<std::shared_ptr<const Mapping>> Map(uint64_t segment_id) const;

  /// Offsets in it are those of an Extent. Nothing where the file system, or the store's options,
  /// allow no direct I/O. Errors as Read.
  Result<std::optional<DirectFile>> OpenDirect(uint64_t segment_id) const;

  /// Checks what needs no knowledge of tensors: every index file byte, every record of the kv
  /// columns, manifests against the index, segment headers, footers, trailers and gaps. `damage` is
  /// called for each problem. Payload digests are core's part (chunk records say what the bytes
  /// must be).
  Result<void> VerifyFiles(const std::function<void(Damage)>& damage) const;

  /// For the store.
  explicit Snapshot(std::unique_ptr<const internal::SnapshotState> state);

 private:
  std::unique_ptr<const internal::SnapshotState> state_;
};

}  // namespace cairn::kv
