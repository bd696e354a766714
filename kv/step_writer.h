#pragma once
/// Writing one step.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/block_pool.h"
#include "kv/digest.h"
#include "kv/error.h"
#include "kv/extents.h"
#include "kv/key.h"
#include "kv/payload.h"
#include "kv/step_info.h"
#include "kv/step_records.h"

namespace cairn::kv {

namespace internal {
class StepAttempt;
}  // namespace internal

/// One rank's contribution to one attempt at a step. Destroying it without Commit abandons the
/// attempt and removes what it wrote. Threads: one at a time.
class StepWriter {
 public:
  ~StepWriter();

  struct Appended {
    Extent extent;
    Digest digest;
  };
  /// Appends the payload of a chunk to the current segment, or to a new one. `page_digests` has one
  /// digest per page of the payload; if it is empty, the digests are computed while the bytes are in
  /// the cache, which a payload with a CopyQueue does not allow.
  Result<Appended> Append(const Payload& payload, SegmentAlignment alignment,
                          std::span<const uint64_t> page_digests = {});
  /// Appends only these pages of a chunk, all to one segment, each range aligned to 4 KiB. Returns
  /// one extent per range. `page_digests` are those of the whole chunk. Requires ranges that are not
  /// empty, ascend and are inside the chunk.
  Result<std::vector<Extent>> AppendPages(const Payload& payload, std::span<const PageRange> ranges,
                                          std::span<const uint64_t> page_digests);
  /// Lets payload pass through `blocks` instead of the store's own from now on: page-locked blocks
  /// for payload in device memory. Seals a segment that has been begun; segments after it are written
  /// to their end in the background. At most once.
  Result<void> UseBlocks(std::shared_ptr<BlockPool> blocks);

  /// Waits until the bytes of all payloads that were appended are in the files. The memory of these
  /// payloads is the caller's again, and all blocks are in the pool.
  Result<void> Drain();

  /// Adds a record; `key` is without generation and added only once. Columns: kTensors, kValues.
  /// Where there are several ranks, tensors that are added before Gather are for the segments'
  /// footers alone; those for the index are added by rank 0, behind it.
  Result<void> AddRecord(Column column, std::string_view key, std::span<const std::byte> record);
  /// Adds a ChunkRecord (sizes in elements). `reused`: the extents are those of the base. Otherwise
  /// they are from Append, or from AppendPages with extents of the base between them, and this call
  /// precedes the next of either.
  Result<void> AddChunk(std::string_view key, std::span<const uint64_t> sizes,
                        const Extents& extents, const Digest& digest, uint64_t since_step,
                        bool reused);
  /// Records that ranks have alike, such as the values that all of them hold. Kept once an attempt,
  /// however many ranks add the same. Only Gather sees them; they do not go into the index.
  Result<void> AddShared(std::span<const SharedRecord> records);

  /// Rank 0 of several: waits for the manifests of all others and takes them over into its own.
  /// `on_record` sees their chunks and shared records: of equal ones only those of the lowest rank,
  /// and none that rank 0 has added itself before. Errors: that of a rank that failed, naming it;
  /// kUnavailable: ranks that are missing at the deadline. Memory: one manifest block.
  Result<void> Gather(const RankRecordCallback& on_record);

  /// The StructureRecord of the step, once. Rank 0.
  Result<void> SetStructure(std::span<const std::byte> record);

  /// Steps 1 to 4 above. On error the step does not exist, unless the message says that it does.
  /// Rank 0 of several calls Gather before it. The counts of the result are those of all ranks.
  Result<StepInfo> Commit(const StepSummary& summary);

  /// In place of Commit, on the other ranks: makes this rank's part durable. From here on rank 0
  /// may commit it.
  Result<void> Prepare(const StepSummary& summary);
  /// After Prepare: waits until rank 0 has committed the step or given it up. The counts of the
  /// result are this rank's. Errors: that of the rank that failed; kUnavailable: no word from rank
  /// 0 at the deadline, or another job has taken over the store. The step may exist all the same
  /// then, if the message says so.
  Result<StepInfo> AwaitDecision();

  /// Bytes this attempt has put into segments so far (payload, without padding).
  uint64_t written_bytes() const;

  /// For the store.
  explicit StepWriter(std::unique_ptr<internal::StepAttempt> attempt);

 private:
  std::unique_ptr<internal::StepAttempt> attempt_;
};

}  // namespace cairn::kv
