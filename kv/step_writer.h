#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Writing one step.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/base/key.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"

namespace cairn::kv {

namespace internal {
class StepAttempt;
}  // namespace internal

/// One rank's contribution to one attempt at a step.
///
/// With one rank: Append and AddRecord, AddChunk; SetStructure; Commit. In a multi-rank store each
/// rank appends, adds its records and calls AddShared. Then rank 0 calls Gather, SetStructure and
/// Commit; the other ranks call Prepare and AwaitDecision.
///
/// Errors: every function returns kUnavailable or kResourceExhausted after a failed file operation,
/// and kFailedPrecondition once the attempt has failed or is committed. An attempt must not be
/// committed after an error; after an error of an append or of Drain it cannot be. Threads: one at
/// a time.
class StepWriter {
 public:
  /// Without Commit, or Prepare on other ranks, abandons the attempt and removes what it wrote.
  ~StepWriter();

  struct Appended {
    Extent extent;
    Digest digest;
  };
  /// Appends the payload of a chunk, at least one byte, to the current segment, or to a new one.
  /// `page_digests` has one digest per page of the payload; if it is empty, the digests are
  /// computed while the bytes are in the cache. Requires `page_digests` if the payload has a
  /// CopyQueue, and pages of 2^kMinPageBits to 2^kMaxPageBits bytes; kPageBits for a delta.
  Result<Appended> Append(const Payload& payload, SegmentAlignment alignment,
                          std::span<const uint64_t> page_digests = {},
                          uint8_t page_bits = kPageBits);
  /// Appends only these pages of a chunk, all to one segment, each range aligned to 4 KiB. Returns
  /// one extent per range. `page_digests` are the digests of all pages of the chunk. Requires
  /// ranges that are not empty, ascend and are inside the chunk, and the page size of the extents
  /// to which the chunk refers, too.
  Result<std::vector<Extent>> AppendPages(const Payload& payload, std::span<const PageRange> ranges,
                                          std::span<const uint64_t> page_digests,
                                          uint8_t page_bits = kPageBits);
  /// Makes payload pass through `blocks` from now on, not through the blocks of the store:
  /// page-locked blocks for payload in device memory. Seals the current segment, if there is one;
  /// the segments after it are completed in the background. Requires that it was not called before.
  Result<void> UseBlocks(std::shared_ptr<BlockPool> blocks);

  /// Waits until the bytes of all appended payloads are in the files. Afterwards the caller may
  /// change the memory of these payloads, and all blocks are in the pool.
  Result<void> Drain();

  /// Adds a record. Requires the column kTensors, kValues or (rank 0) kApplication, and a key that
  /// was not added before. In a multi-rank store, tensors that are added before Gather are only for
  /// the footers of segments; rank 0 adds those for the step after Gather.
  Result<void> AddRecord(Column column, std::string_view key, std::span<const std::byte> record);
  /// Adds a ChunkRecord. If `reused`, the base has these extents. Otherwise they come from the last
  /// Append, or from the last AppendPages with extents of the base between them, or from the base,
  /// with a delta from the last Append; so this call precedes the next append.
  Result<void> AddChunk(std::string_view key, const ChunkEntry& entry, bool reused);
  /// Returns whether a chunk that was appended before is in the segment to which payload is
  /// appended now, without deltas of other segments. Then AddChunk may add the same extents once
  /// more, under another key, with `reused` false.
  bool IsInCurrentSegment(const ChunkExtents& extents) const;
  /// Permits AddChunk to refer to segments that `step` uses, in addition to the segments of the
  /// base. Commit returns kConflict if `step` was deleted or replaced since.
  void ReferTo(const StepInfo& step);
  /// Adds records that several ranks have in common, such as replicated values. They are stored
  /// once per attempt, however many ranks add the same records. Only Gather reads them; they are
  /// not added to the step. Requires several ranks, and that Gather was not called.
  Result<void> AddShared(std::span<const SharedRecord> records);

  /// Waits for the parts of all other ranks and adds their records to its own. Adds their chunks
  /// and shared records to `others`, on this thread, except shared records that rank 0 or a lower
  /// rank has added. Returns the error of a rank that failed, and names that rank. kUnavailable:
  /// ranks are missing at the deadline. Requires rank 0 of several, and that it was not called
  /// before. Memory: a few parts, and the records up to a limit. Decodes parts on all cores, at
  /// most 8.
  Result<void> Gather(RankRecords& others);

  /// Sets the StructureRecord of the step. Requires rank 0, and that it was not called before.
  Result<void> SetStructure(std::span<const std::byte> record);

  /// Commits the step, as described in kv/store.h. After an error the step does not exist, unless
  /// the message states that it does. The result counts all ranks. kConflict: a segment to which
  /// the step refers was deleted. Requires rank 0, SetStructure and, if there are several ranks,
  /// Gather.
  Result<StepInfo> Commit(const StepSummary& summary);

  /// Commits a step with the same records as `base`, in place of all calls above: the caller
  /// guarantees that nothing has changed since. kConflict: `base` was deleted or replaced. Requires
  /// one rank, and that nothing was appended or added.
  Result<StepInfo> CommitSame(const StepInfo& base);

  /// Makes this rank's part durable, in place of Commit on the ranks other than 0. From here on
  /// rank 0 may commit it. kConflict: a segment to which the part refers was deleted. If it is
  /// unknown whether rank 0 can see the part, the message of the error states that. Requires a
  /// store that was opened with kJoinSession.
  Result<void> Prepare(const StepSummary& summary);
  /// Waits until rank 0 has committed the step or aborted the attempt. The result counts only this
  /// rank. Returns the error of the rank that failed. kUnavailable: rank 0 has not decided before
  /// the deadline, or another job has taken over the store; the message states whether the step may
  /// exist. Requires Prepare.
  Result<StepInfo> AwaitDecision();

  /// Payload that this rank has appended to segments so far, without padding.
  uint64_t written_bytes() const;

  /// For Store.
  explicit StepWriter(std::unique_ptr<internal::StepAttempt> attempt);

 private:
  std::unique_ptr<internal::StepAttempt> attempt_;
};

}  // namespace cairn::kv
