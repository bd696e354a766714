// Parts are taken in batches of consecutive ranks. A few background threads each fetch one batch,
// decompress it, and verify and sort its records (rank_batch.h); they fetch one after another, in
// the order of the ranks. The calling thread adds the batches to the step in the same order. It
// decodes a part itself that is too large for one batch, piece by piece.

#include "kv/commit/internal/part_gatherer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/rank_batch.h"
#include "kv/commit/internal/rank_parts.h"
#include "kv/commit/internal/step_commit.h"
#include "kv/io/worker_pool.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/storage/internal/concurrent_requests.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kBatchBytes = 1 << 20;          // about; but at least one part
constexpr size_t kMaxBatch = 64;                 // parts
constexpr uint64_t kMaxDecodedBytes = 32 << 20;  // limit of a batch for a background thread
constexpr uint64_t kPieceBytes = 4 << 20;        // size of the pieces of a larger part

/// The order in which background threads fetch.
class Turns {
 public:
  /// Returns when the turns before this one have ended, or at once after Cancel.
  void Await(uint64_t turn) {
    const MutexLock lock(mutex_);
    while (current_ < turn && !is_cancelled_) changed_.Wait(mutex_);
  }
  void End() {
    const MutexLock lock(mutex_);
    ++current_;
    changed_.NotifyAll();
  }
  void Cancel() {
    const MutexLock lock(mutex_);
    is_cancelled_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t current_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool is_cancelled_ CAIRN_GUARDED_BY(mutex_) = false;
};

/// Memory: per background thread, a batch of parts of about 1 MiB and its records; or two parts, if
/// parts are larger than that. Threads: one.
class PartGatherer {
 public:
  PartGatherer(StepAttempt& attempt, RankRecords& others)
      : attempt_(attempt), storage_(*attempt.store->storage), others_(others) {}
  /// Cancels what the background threads do, and waits for them. A turn may be one of a thread that
  /// was never started, so that others must not wait for it.
  ~PartGatherer() {
    is_cancelled_ = true;
    turns_.Cancel();
  }
  PartGatherer(const PartGatherer&) = delete;
  PartGatherer& operator=(const PartGatherer&) = delete;

  /// Adds the parts of all ranks but 0. Call once.
  Result<void> AddAll() {
    const size_t threads = WorkerThreads();
    Begin(1);  // one part, which shows how large parts are
    while (!loading_.empty()) {
      Result<Batch> batch = loading_.front().get();
      loading_.pop_front();
      if (!batch) return Fail(std::move(batch).error());
      CAIRN_TRY(AddBatch(*batch));
      size_t largest = 1;
      for (const auto& part : batch->parts) largest = std::max(largest, part.size());
      batch->records->Clear();
      unused_.push_back(std::move(batch->records));
      // Later parts may be larger than those so far, so batches grow slowly.
      const size_t most = std::min(kMaxBatch, 2 * batch->parts.size());
      const size_t count = std::clamp<size_t>(kBatchBytes / largest, 1, most);
      // If parts are large, one is fetched while another one is added.
      const size_t loading = largest > kBatchBytes ? 1 : threads;
      while (loading_.size() < loading && next_rank_ < attempt_.options.world_size) {
        Begin(static_cast<uint32_t>(count));
      }
    }
    return {};
  }

 private:
  /// The parts of consecutive ranks.
  struct Batch {
    uint32_t first = 0;
    std::vector<std::vector<std::byte>> parts;
    std::unique_ptr<RankBatch> records;
    bool is_decoded = false;  // otherwise the parts are too large
  };

  /// Begins to load the parts of the next `count` ranks in the background.
  void Begin(uint32_t count) {
    const uint32_t first = next_rank_;
    const uint64_t turn = next_turn_++;
    next_rank_ += std::min(count, attempt_.options.world_size - first);
    if (unused_.empty()) {
      unused_.push_back(std::make_unique<RankBatch>(attempt_.attempt, attempt_.store->epoch));
    }
    // Deferred if the system has no more threads.
    loading_.push_back(std::async(std::launch::async | std::launch::deferred,
                                  [this, turn, first, count = next_rank_ - first,
                                   records = std::move(unused_.back())]() mutable {
                                    return Load(turn, first, count, std::move(records));
                                  }));
    unused_.pop_back();
  }

  /// Fetches and decodes the parts of `count` ranks from `first` on.
  Result<Batch> Load(uint64_t turn, uint32_t first, uint32_t count,
                     std::unique_ptr<RankBatch> records) {
    Batch batch{.first = first,
                .parts = std::vector<std::vector<std::byte>>(count),
                .records = std::move(records)};
    CAIRN_TRY(FetchInTurn(turn, batch));
    uint64_t decoded_bytes = 0;
    bool is_large = false;
    for (const auto& part : batch.parts) {
      decoded_bytes += ClaimedBytes(part);
      is_large |= HasDataObjects(part);
    }
    if (is_large || decoded_bytes > kMaxDecodedBytes) return batch;
    CAIRN_TRY(Decode(batch, /*is_in_pieces=*/false));
    batch.is_decoded = true;
    return batch;
  }

  Result<void> FetchInTurn(uint64_t turn, Batch& batch) {
    struct Turn {
      Turns& turns;
      ~Turn() { turns.End(); }
    };
    turns_.Await(turn);
    const Turn ending{turns_};
    auto fetched = ForEachRequest(storage_, batch.parts.size(), [&](size_t i) -> Result<void> {
      CAIRN_TRY_ASSIGN(batch.parts[i], AwaitPart(batch.first + static_cast<uint32_t>(i)));
      return {};
    });
    if (!fetched) is_cancelled_ = true;  // the turns after this one would wait in vain
    return fetched;
  }

  /// Returns the part. Returns the failure of a rank, or kUnavailable if the part is missing at the
  /// deadline.
  Result<std::vector<std::byte>> AwaitPart(uint32_t rank) const {
    const std::string name = PartName(attempt_.attempt, rank);
    Poll poll(attempt_.options.deadline);
    while (true) {
      if (is_cancelled_) return Fail(ErrorCode::kCancelled, "another part could not be added");
      auto part = FetchPart(storage_, name);
      if (part || part.error().code != ErrorCode::kNotFound) return part;
      if (auto failure = FindFailure(storage_, attempt_.attempt)) return Fail(*std::move(failure));
      if (!poll.Again()) return Fail(MissingRanks(rank));
    }
  }

  Error MissingRanks(uint32_t first) const {
    constexpr uint64_t kNamed = 8;
    std::string names;
    uint64_t count = 0;
    for (uint32_t rank = first; rank < attempt_.options.world_size; ++rank) {
      const auto exists = ObjectExists(storage_, PartName(attempt_.attempt, rank));
      if (exists.value_or(false)) continue;
      if (count++ < kNamed) names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
    }
    return Error{.code = ErrorCode::kUnavailable,
                 .message = fmt::format(
                     "{} of {} ranks had not written their part at the deadline: {}{}; if they "
                     "died, restart the job, otherwise allow more time",
                     count, attempt_.options.world_size, names, count > kNamed ? ", ..." : ""),
                 .file = ObjectPath(storage_.address(), PartName(attempt_.attempt, first)),
                 .step = attempt_.step};
  }

  /// Verifies the parts and collects their records. If this is in pieces, adds each piece to the
  /// step, except the last one.
  Result<void> Decode(Batch& batch, bool is_in_pieces) {
    for (size_t i = 0; i < batch.parts.size(); ++i) {
      const uint32_t rank = batch.first + static_cast<uint32_t>(i);
      const PartHeader expected{.store_uuid = attempt_.store->uuid,
                                .step = attempt_.step,
                                .rank = rank,
                                .world_size = attempt_.options.world_size,
                                .attempt = attempt_.attempt};
      RankBatch& records = *batch.records;
      records.BeginPart(rank);
      CAIRN_TRY(ReadFetchedPart(storage_, PartName(attempt_.attempt, rank), batch.parts[i],
                                expected, [&](const RecordView& record) -> Result<void> {
                                  CAIRN_TRY(records.Add(record));
                                  if (!is_in_pieces || records.size_bytes() < kPieceBytes)
                                    return {};
                                  CAIRN_TRY(records.Finish());
                                  CAIRN_TRY(AddRecords(records));
                                  records.Clear();
                                  return {};
                                }));
    }
    return batch.records->Finish();
  }

  Result<void> AddBatch(Batch& batch) {
    if (!batch.is_decoded) CAIRN_TRY(Decode(batch, /*is_in_pieces=*/true));
    return AddRecords(*batch.records);
  }

  Result<void> AddRecords(RankBatch& records) {
    for (const RankBatch::Shared& shared : records.shared()) {
      CAIRN_TRY(AddShared(shared.rank, shared.digest));
    }
    CAIRN_TRY(
        records.ForEachChunk([this](const RankChunk& chunk) { return others_.AddChunk(chunk); }));
    CAIRN_TRY(attempt_.records.AddRun(records.TakeRun()));
    attempt_.live_bytes.Add(records.live_bytes());
    attempt_.chunk_count += records.counts().chunks;
    attempt_.reused_chunk_count += records.counts().reused_chunks;
    attempt_.written_bytes_of_others += records.counts().written_bytes;
    return {};
  }

  Result<void> AddShared(uint32_t rank, const std::string& digest) {
    if (!attempt_.known_shared_records.insert(digest).second) return {};
    CAIRN_TRY_ASSIGN(const auto records, ReadSharedRecords(attempt_, digest));
    for (const SharedRecord& record : records) {
      CAIRN_TRY(others_.AddShared(rank, record.column, record.key, record.value));
    }
    return {};
  }

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

}  // namespace

Result<void> GatherParts(StepAttempt& attempt, RankRecords& others) {
  CAIRN_CHECK(attempt.has_ranks() && !attempt.store->joined && !attempt.gathered);
  attempt.failed = true;  // until all parts have been added
  CAIRN_TRY(attempt.segments.Seal());
  OpenLikelyBase(*attempt.store);  // while other ranks are still writing
  CAIRN_TRY(PartGatherer(attempt, others).AddAll());
  attempt.gathered = true;
  attempt.failed = false;
  return {};
}

}  // namespace cairn::kv::internal
