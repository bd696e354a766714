#pragma once
/// The committed steps at one point in time: their records and payload.

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

/// A consistent, immutable view of the committed steps. It may outlive the Store. If a step is
/// deleted after the snapshot was taken, its payload may become unreadable; reads then return
/// kNotFound. Threads: all members are safe.
class Snapshot {
 public:
  ~Snapshot();
  /// The steps, in ascending order.
  const std::vector<StepInfo>& steps() const;
  /// Returns `step`, or the latest step. kNotFound: there is no such step; the message lists steps
  /// that exist.
  Result<StepInfo> FindStep(std::optional<uint64_t> step) const;

  // The functions below return kDataLoss if the index is damaged, kNotFound if the step was
  // deleted, and kUnavailable after an I/O error.

  /// Calls `callback` with the records of one generation whose key begins with `prefix`, in key
  /// order. The caller verifies the records.
  Result<void> Scan(Column column, uint64_t generation, std::string_view prefix,
                    const ScanCallback& callback) const;
  /// Returns the bytes of a record (aligned for FlatBuffers), or nothing if there is none. The
  /// caller verifies the record.
  Result<std::optional<std::vector<std::byte>>> Get(Column column, uint64_t generation,
                                                    std::string_view key) const;
  /// Returns the StructureRecord with this digest, or nothing if there is none.
  Result<std::optional<std::vector<std::byte>>> GetStructure(const Digest& digest) const;

  /// kDataLoss: the index has no such segment.
  Result<SegmentInfo> FindSegment(uint64_t segment_id) const;
  Result<std::vector<SegmentInfo>> Segments() const;
  Result<std::vector<Usage>> SegmentUsage() const;

  /// Reads many ranges with deep queues and bounded memory (the pool of IoOptions), with O_DIRECT
  /// unless the page cache has the bytes. Neighbouring ranges become one request. `arrived(i,
  /// bytes)` is called once per range, when all bytes of ranges[i] have been read, so that the
  /// caller can verify them while they are in the cache; an error from it ends the read. No digest
  /// is checked here. At most `threads` threads, including the calling one, share the work; if
  /// there are several, they may call `arrived` concurrently. Returns the number of bytes that were
  /// read from storage. kDataLoss: a segment is missing, too short or unreadable. kNotFound: its
  /// step was deleted. Requires `lent_bytes <= ReadRange::kMaxLentBytes` in every range.
  Result<uint64_t> Read(std::span<const ReadRange> ranges, uint32_t threads,
                        const RangeCallback& arrived) const;

  /// Maps a complete segment. Its pages are read on access and shared with the page cache. Writes
  /// through the mapping are private to this process. Offsets are those of an Extent. kDataLoss:
  /// the segment is missing or too short. kNotFound: its step was deleted.
  Result<std::shared_ptr<const Mapping>> Map(uint64_t segment_id) const;

  /// Opens a segment for direct I/O. Offsets are those of an Extent. Returns nothing if the file
  /// system or the store's options do not allow direct I/O. kDataLoss: the segment is missing.
  /// kNotFound: its step was deleted.
  Result<std::optional<DirectFile>> OpenDirect(uint64_t segment_id) const;

  /// Checks everything that does not require knowledge of tensors: every byte of the index files,
  /// every record of the kv columns, manifests against the index, and the headers, footers,
  /// trailers and gaps of segments. Calls `damage` for each problem. The digests of payload are
  /// checked by core/, which interprets chunk records.
  Result<void> VerifyFiles(const std::function<void(Damage)>& damage) const;

  /// For Store.
  explicit Snapshot(std::unique_ptr<const internal::SnapshotState> state);

 private:
  std::unique_ptr<const internal::SnapshotState> state_;
};

}  // namespace cairn::kv
