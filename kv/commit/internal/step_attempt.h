#pragma once
/// One rank's part of one attempt at a step: the state behind StepWriter.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/record_sorter.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_stream.h"
#include "kv/state/internal/live_bytes.h"
#include "kv/state/internal/store_state.h"
#include "kv/table/internal/record_run.h"

namespace cairn::kv::internal {

/// The destructor removes the objects of an attempt that is not finished. Threads: one at a time.
class StepAttempt {
 public:
  StepAttempt(std::shared_ptr<StoreState> store, uint64_t step, const BeginOptions& options,
              std::string attempt, Continuation continuation);
  ~StepAttempt();
  StepAttempt(const StepAttempt&) = delete;
  StepAttempt& operator=(const StepAttempt&) = delete;

  /// kFailedPrecondition: the attempt has failed or is committed, or this is a forked child.
  Result<void> CheckUsable() const;
  bool has_ranks() const { return options.world_size > 1; }

  /// Adds a record to the step, or to the part of a joined rank.
  Result<void> AddEntry(const TableRecord& record);
  Result<void> AddEntry(Column column, std::string_view key, std::span<const std::byte> value);
  StepInfo InfoOf(const StepSummary& summary) const;
  /// Returns the header of an object that a rank puts for this attempt.
  PartHeader HeaderOf(uint32_t rank) const;

  /// If the storage answers slowly, opens the tables of the latest step while the caller waits for
  /// something else. The commit usually compares its records with this step, and returns the errors
  /// that this function ignores. Threads: any.
  void OpenLikelyBase() const;
  /// Seals all segments and makes their names durable.
  Result<void> SealSegments();
  /// Segments whose seal has failed lack bytes: what needs them must not be repeated.
  bool seal_failed() const { return seal_failed_; }
  /// See FreeSpace; for the writes of this attempt.
  std::optional<std::string> FreeSpaceFor(uint64_t& seen);
  uint64_t written_bytes() const { return segments.written_bytes() + written_bytes_of_others; }

  const std::shared_ptr<StoreState> store;
  const uint64_t step;
  const BeginOptions options;
  const std::string attempt;
  const Continuation continuation;  // of rank 0: what the step continues from
  /// Of a derived step, the time of its source: footers, from which a rebuild may recover it, have
  /// it, too.
  const int64_t created_unix_ns;

  SegmentStream segments;
  std::unique_ptr<PartWriter> part;  // of a joined rank
  RecordSorter records;              // of rank 0, from all ranks
  LiveBytes live_bytes;              // of the chunks in records
  ChunkEncoder chunk_encoder;        // for reused chunks
  Digest structure;
  std::vector<std::byte> structure_record;  // not in `records`, which would copy it several times
  bool has_structure = false;
  uint64_t chunk_count = 0;
  uint64_t reused_chunk_count = 0;
  std::vector<StepInfo> referred_steps;  // steps, besides the base, whose segments chunks may use

  // In a multi-rank store.
  std::set<std::string> known_shared_records;  // digests of the records that were added or read
  uint64_t written_bytes_of_others = 0;        // sum over the ranks whose parts rank 0 has gathered
  bool gathered = false;
  StepInfo prepared;

  std::atomic<bool> committing = false;  // the thread that commits holds write_mutex
  bool failed = false;                   // nothing can be added or committed any more
  bool finished = false;                 // the objects belong to a step that exists or may exist

 private:
  void RemoveOwnObjects();

  size_t synced_segments_ = 0;  // segments whose names are durable
  bool seal_failed_ = false;
  std::string key_;  // of a record, with its column
};

}  // namespace cairn::kv::internal
