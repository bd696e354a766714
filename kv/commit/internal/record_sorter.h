#pragma once
/// The records of a step between the time when they are added, in any order, and the commit, which
/// needs them in the order of their keys: sort, spill sorted runs, merge.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/io/internal/free_space.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/record_run.h"

namespace cairn::kv::internal {

/// Memory: at most `memory_bytes` of sorted runs, 4 MiB of records that are not sorted yet, and
/// about 2 MiB per spilled run. What exceeds this is merged and spilled to a run in an object with
/// the name of a table that no root reaches. The destructor removes it. Threads: one.
class RecordSorter {
 public:
  static constexpr uint64_t kMemoryBytes = 192 << 20;

  /// `free_space` may be null.
  RecordSorter(std::shared_ptr<Storage> storage, uint32_t epoch,
               uint64_t memory_bytes = kMemoryBytes, FreeSpace free_space = nullptr);
  ~RecordSorter();
  RecordSorter(const RecordSorter&) = delete;
  RecordSorter& operator=(const RecordSorter&) = delete;

  /// Requires a key that was not added before. kInvalidArgument: CheckRecord refuses the record.
  /// kUnavailable, kResourceExhausted: the records cannot be spilled.
  Result<void> Add(const TableRecord& record);
  /// Adds a run in memory. kUnavailable, kResourceExhausted: the records cannot be spilled.
  Result<void> AddRun(RecordRun run);

  /// Calls `callback` with every record, ascending by key. Values are aligned to 8 bytes and valid
  /// only during the call.
  Result<void> ForEachInOrder(const TableRecordCallback& callback);

 private:
  Result<void> EndRun();
  Result<void> Spill();
  Result<void> Merge(std::span<const RecordRun> runs, const TableRecordCallback& callback);

  const std::shared_ptr<Storage> storage_;
  const uint32_t epoch_;
  const uint64_t memory_bytes_;
  const FreeSpace free_space_;
  RecordSet added_;  // in no run yet
  RecordRunWriter writer_;
  std::vector<RecordRun> runs_;  // the runs in objects first
  size_t spilled_count_ = 0;     // in runs_
  uint64_t memory_used_bytes_ = 0;
};

}  // namespace cairn::kv::internal
