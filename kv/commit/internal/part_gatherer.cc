// Each worker takes the parts of consecutive ranks as a batch, again and again: it fetches them
// while no other worker fetches, decompresses, verifies and sorts them (rank_batch.h), and adds the
// batch to the step when the batches before have been added. A part that is too large for one batch
// is decoded piece by piece at that time.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/rank_batch.h"
#include "kv/commit/internal/rank_parts.h"
#include "kv/io/worker_pool.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {
namespace {

constexpr char kWhat[] = "the parts of the ranks";
constexpr size_t kBatchBytes = 1 << 20;          // about; a batch has at least one part
constexpr size_t kMaxBatch = 256;                // parts
constexpr uint64_t kMaxDecodedBytes = 32 << 20;  // limit of a batch that is decoded at once
constexpr uint64_t kPieceBytes = 4 << 20;        // size of the pieces of a larger part

/// Memory: per worker about 1 MiB of parts and their records, or one part if it is larger.
/// Threads: one.
class PartGatherer {
 public:
  PartGatherer(StepAttempt& attempt, RankRecords& others)
      : attempt_(attempt), storage_(*attempt.store->storage), others_(others) {}

  /// Adds the parts of all ranks but 0. Returns the error of the lowest rank. Call once.
  Result<void> AddAll() {
    return RunOnThreads(WorkerThreads(), kWhat, [this](size_t) { return Work(); });
  }

 private:
  /// The parts of consecutive ranks.
  struct Batch {
    uint64_t number = 0;
    uint32_t first = 0;
    std::vector<std::vector<std::byte>> parts;
    std::vector<std::byte> memory;  // for ReadPart
    bool is_decoded = false;        // otherwise the parts are too large
  };

  /// Adds batches until there are none. Returns the first error, unless another worker has it.
  Result<void> Work() {
    RankBatch records(attempt_.attempt, attempt_.store->epoch);
    while (true) {
      Batch batch;
      Result<void> done;
      {
        const MutexLock lock(fetch_mutex_);
        if (next_rank_ == attempt_.options.world_size) return {};
        batch.number = batch_count_++;
        batch.first = next_rank_;
        done = CatchExhaustion(kWhat, [&] { return Fetch(batch); });
      }
      if (done) done = CatchExhaustion(kWhat, [&] { return DecodeUnlessLarge(batch, records); });
      AwaitTurn(batch.number);
      if (is_cancelled_) return EndTurn({});
      if (done && !batch.is_decoded) {
        done = CatchExhaustion(kWhat, [&] { return Decode(batch, records, /*in_pieces=*/true); });
      }
      if (done) done = CatchExhaustion(kWhat, [&] { return AddRecords(records); });
      CAIRN_TRY(EndTurn(std::move(done)));
    }
  }

  /// Waits until the batches before this one have ended.
  void AwaitTurn(uint64_t number) {
    const MutexLock lock(turn_mutex_);
    while (turn_ != number) turn_changed_.Wait(turn_mutex_);
  }

  /// Ends a batch. An error cancels those that follow. Returns `result`.
  Result<void> EndTurn(Result<void> result) {
    {
      const MutexLock lock(turn_mutex_);
      if (!result) is_cancelled_ = true;
      ++turn_;
    }
    turn_changed_.NotifyAll();
    return result;
  }

  /// Fetches the parts of the next ranks. Later parts may be larger than those so far, so batches
  /// grow slowly.
  Result<void> Fetch(Batch& batch) CAIRN_REQUIRES(fetch_mutex_) {
    const size_t most = std::min(kMaxBatch, kBatchBytes / largest_part_bytes_);
    const size_t count = std::min(std::max<size_t>(most, 1), std::max<size_t>(2 * last_count_, 1));
    last_count_ = std::min<size_t>(count, attempt_.options.world_size - batch.first);
    next_rank_ += static_cast<uint32_t>(last_count_);
    batch.parts.resize(last_count_);
    CAIRN_TRY(ForEachRequest(storage_, last_count_, [&](size_t i) -> Result<void> {
      CAIRN_TRY_ASSIGN(batch.parts[i], AwaitPart(batch.first + static_cast<uint32_t>(i)));
      return {};
    }));
    for (const auto& part : batch.parts) {
      largest_part_bytes_ = std::max(largest_part_bytes_, part.size());
    }
    return {};
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

  std::string PathOf(uint32_t rank) const {
    return ObjectPath(storage_.address(), PartName(attempt_.attempt, rank));
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
                 .file = PathOf(first),
                 .step = attempt_.step};
  }

  Result<void> DecodeUnlessLarge(Batch& batch, RankBatch& records) {
    uint64_t decoded_bytes = 0;
    for (const auto& part : batch.parts) decoded_bytes += ClaimedBytes(part);
    if (decoded_bytes > kMaxDecodedBytes) return {};
    batch.is_decoded = true;
    return Decode(batch, records, /*in_pieces=*/false);
  }

  /// Verifies the parts and collects their records; in pieces, adds all but the last one.
  Result<void> Decode(Batch& batch, RankBatch& records, bool in_pieces) {
    for (size_t i = 0; i < batch.parts.size(); ++i) {
      const uint32_t rank = batch.first + static_cast<uint32_t>(i);
      records.BeginPart(rank);
      const auto add = [&](const TableRecord& record) -> Result<void> {
        CAIRN_TRY(records.Add(record));
        if (!in_pieces || records.size_bytes() < kPieceBytes) return {};
        CAIRN_TRY(records.Finish());
        return AddRecords(records);
      };
      CAIRN_TRY(
          ReadPart(PathOf(rank), batch.parts[i], attempt_.HeaderOf(rank), add, &batch.memory));
    }
    return records.Finish();
  }

  /// Adds the records to the step, and removes them from the batch.
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
    records.Clear();
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
  std::atomic<bool> is_cancelled_ = false;

  Mutex fetch_mutex_;
  uint32_t next_rank_ CAIRN_GUARDED_BY(fetch_mutex_) = 1;
  uint64_t batch_count_ CAIRN_GUARDED_BY(fetch_mutex_) = 0;
  size_t last_count_ CAIRN_GUARDED_BY(fetch_mutex_) = 0;          // parts of the last batch
  size_t largest_part_bytes_ CAIRN_GUARDED_BY(fetch_mutex_) = 1;  // so far

  Mutex turn_mutex_;
  CondVar turn_changed_;
  uint64_t turn_ CAIRN_GUARDED_BY(turn_mutex_) = 0;  // the number of the batch that is added
};

}  // namespace

Result<void> GatherParts(StepAttempt& attempt, RankRecords& others) {
  attempt.failed = true;  // until all parts have been added
  CAIRN_TRY(attempt.segments.Seal());
  attempt.OpenLikelyBase();  // while other ranks are still writing
  CAIRN_TRY(PartGatherer(attempt, others).AddAll());
  attempt.gathered = true;
  attempt.failed = false;
  return {};
}

}  // namespace cairn::kv::internal
