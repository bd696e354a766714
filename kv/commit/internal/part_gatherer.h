#pragma once
/// Rank 0's side of the parts of the other ranks: waits for them, and adds their records to the
/// step.
///
/// Parts are taken in batches of consecutive ranks. A few background threads each fetch one batch,
/// decompress it, and verify and sort its records (rank_batch.h); they fetch one after another, in
/// the order of the ranks. The calling thread adds the batches to the step in the same order. It
/// decodes a part itself that is too large for one batch, piece by piece.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/step_records.h"
#include "kv/base/thread_annotations.h"
#include "kv/commit/internal/rank_batch.h"
#include "kv/commit/internal/step_attempt.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Memory: per background thread, a batch of parts of about 1 MiB and its records; or two parts, if
/// parts are larger than that. Threads: one.
class PartGatherer {
 public:
  PartGatherer(StepAttempt& attempt, RankRecords& others);
  /// Cancels what the background threads do, and waits for them.
  ~PartGatherer();
  PartGatherer(const PartGatherer&) = delete;
  PartGatherer& operator=(const PartGatherer&) = delete;

  /// Adds the parts of all ranks but 0. Call once. See StepWriter::Gather.
  Result<void> AddAll();

 private:
  /// The parts of consecutive ranks.
  struct Batch {
    uint32_t first = 0;
    std::vector<std::vector<std::byte>> parts;
    std::unique_ptr<RankBatch> records;
    bool is_decoded = false;  // otherwise the parts are too large
  };
  /// The order in which background threads fetch.
  class Turns {
   public:
    /// Returns when the turns before this one have ended, or at once after Cancel.
    void Await(uint64_t turn);
    void End();
    void Cancel();

   private:
    Mutex mutex_;
    CondVar changed_;
    uint64_t current_ CAIRN_GUARDED_BY(mutex_) = 0;
    bool is_cancelled_ CAIRN_GUARDED_BY(mutex_) = false;
  };

  void Begin(uint32_t count);
  Result<Batch> Load(uint64_t turn, uint32_t first, uint32_t count,
                     std::unique_ptr<RankBatch> records);
  Result<void> FetchInTurn(uint64_t turn, Batch& batch);
  Result<std::vector<std::byte>> AwaitPart(uint32_t rank) const;
  Error MissingRanks(uint32_t first) const;
  Result<void> Decode(Batch& batch, bool is_in_pieces);
  Result<void> AddBatch(Batch& batch);
  Result<void> AddRecords(RankBatch& records);
  Result<void> AddShared(uint32_t rank, const std::string& digest);

  StepAttempt& attempt_;
  Storage& storage_;
  RankRecords& others_;
  std::vector<std::unique_ptr<RankBatch>> unused_;
  uint32_t next_rank_ = 1;  // the first part that no thread fetches yet
  uint64_t next_turn_ = 0;
  Turns turns_;
  std::atomic<bool> is_cancelled_ = false;
  std::deque<std::future<Result<Batch>>> loading_;  // The last member: its destructor waits for
                                                    // the threads, which use the others.
};

}  // namespace cairn::kv::internal
