#pragma once
/// Verifies and sorts the records of the parts of a few ranks. One thread fills a batch while
/// another one adds the batch before to the step.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/state/internal/live_bytes.h"
#include "kv/table/internal/record_run.h"

namespace cairn::kv::internal {

/// Memory: the records. Threads: one at a time.
class RankBatch {
 public:
  struct Shared {
    uint32_t rank = 0;
    std::string digest;
  };
  /// The sums of the step records of the parts.
  struct Counts {
    uint64_t chunks = 0;
    uint64_t reused_chunks = 0;
    uint64_t written_bytes = 0;
  };

  /// A batch of parts of this attempt, whose segments have this epoch.
  RankBatch(std::string attempt, uint32_t epoch) : attempt_(std::move(attempt)), epoch_(epoch) {}

  /// Begins the part of `rank`. The records that follow are in this part.
  void BeginPart(uint32_t rank);
  /// Verifies and adds a record. kDataLoss, kUnimplemented: the record is damaged, newer than this
  /// build reads, or not one of a part. After an error the batch can only be destroyed.
  Result<void> Add(const TableRecord& record);
  /// Sorts the records. Nothing can be added until Clear.
  Result<void> Finish();
  /// Removes the records. What was begun remains so.
  void Clear();

  /// Length of the records of chunks and segments.
  uint64_t size_bytes() const { return records_.size_bytes(); }
  /// Calls `visit` with each chunk, in the order in which they were added.
  Result<void> ForEachChunk(const std::function<Result<void>(const RankChunk& chunk)>& visit) const;
  /// Returns the records of chunks and segments. Requires Finish. Call once.
  RecordRun TakeRun() { return std::move(run_); }
  const std::vector<Shared>& shared() const { return shared_; }
  const Counts& counts() const { return counts_; }
  /// The bytes that the chunks use.
  const LiveBytes& live_bytes() const { return live_bytes_; }

 private:
  struct Chunk {
    uint32_t rank = 0;
    std::string_view fqn;  // in records_
    size_t dimensions = 0;
    uint64_t length_bytes = 0;
  };

  Result<void> AddChunk(const TableRecord& record);
  Result<void> AddSegment(const TableRecord& record);

  const std::string attempt_;
  const uint32_t epoch_;
  uint32_t rank_ = 0;
  uint64_t part_segments_ = 0;  // in the part that was begun

  RecordSet records_;
  RecordRunWriter writer_;
  RecordRun run_;
  std::vector<Chunk> chunks_;
  std::vector<uint64_t> boxes_;  // per chunk: offsets, then sizes, in elements
  std::vector<Shared> shared_;
  Counts counts_;
  LiveBytes live_bytes_;
};

}  // namespace cairn::kv::internal
