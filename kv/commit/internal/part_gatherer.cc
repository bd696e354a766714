// Parts are taken in waves of consecutive ranks. In the background, the parts of a wave are
// fetched, in the order of the ranks, and then decompressed, verified and sorted in one batch per
// core (rank_batch.h), while the calling thread adds the batches of the wave before to the step. It
// decodes a part itself that is too large for one batch, piece by piece.

#include "kv/commit/internal/part_gatherer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/div.h"
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

constexpr size_t kBatchBytes = 1 << 20;          // about; a wave has at least one part
constexpr size_t kMaxBatch = 64;                 // parts
constexpr uint64_t kMaxDecodedBytes = 32 << 20;  // limit of a batch that is decoded at once
constexpr uint64_t kPieceBytes = 4 << 20;        // size of the pieces of a larger part

/// Memory: two waves, each of about 1 MiB of parts per core and their records; or two parts, if
/// parts are larger than that. Threads: one.
class PartGatherer {
 public:
  PartGatherer(StepAttempt& attempt, RankRecords& others)
      : attempt_(attempt), storage_(*attempt.store->storage), others_(others) {}
  /// Cancels what is done in the background, and waits for it.
  ~PartGatherer() { is_cancelled_ = true; }
  PartGatherer(const PartGatherer&) = delete;
  PartGatherer& operator=(const PartGatherer&) = delete;

  /// Adds the parts of all ranks but 0. Call once.
  Result<void> AddAll() {
    Begin(1);  // one part, which shows how large parts are
    while (loading_.valid()) {
      CAIRN_TRY_ASSIGN(Wave wave, loading_.get());
      size_t count = 0;
      size_t largest = 1;
      for (const Batch& batch : wave) {
        count += batch.parts.size();
        for (const auto& part : batch.parts) largest = std::max(largest, part.size());
      }
      // Later parts may be larger than those so far, so waves grow slowly.
      const size_t per_batch = std::min(kMaxBatch, kBatchBytes / largest);
      Begin(std::clamp<size_t>(threads_ * per_batch, 1, 2 * count));
      for (Batch& batch : wave) {
        CAIRN_TRY(AddBatch(batch));
        batch.records->Clear();
        unused_.push_back(std::move(batch.records));
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
  using Wave = std::vector<Batch>;

  /// Begins to load the parts of the next `count` ranks in the background, unless there are none.
  void Begin(size_t count) {
    const uint32_t world_size = attempt_.options.world_size;
    const uint32_t end =
        next_rank_ + static_cast<uint32_t>(std::min<size_t>(count, world_size - next_rank_));
    const auto per_batch = static_cast<uint32_t>(DivCeil(end - next_rank_, threads_));
    Wave wave;
    while (next_rank_ < end) {
      if (unused_.empty()) {
        unused_.push_back(std::make_unique<RankBatch>(attempt_.attempt, attempt_.store->epoch));
      }
      Batch& batch = wave.emplace_back();
      batch.first = next_rank_;
      batch.parts.resize(std::min(per_batch, end - next_rank_));
      batch.records = std::move(unused_.back());
      unused_.pop_back();
      next_rank_ += static_cast<uint32_t>(batch.parts.size());
    }
    if (wave.empty()) return;
    // Deferred if the system has no more threads.
    loading_ =
        std::async(std::launch::async | std::launch::deferred,
                   [this, wave = std::move(wave)]() mutable { return Load(std::move(wave)); });
  }

  Result<Wave> Load(Wave wave) const {
    const uint32_t first = wave.front().first;
    const size_t per_batch = wave.front().parts.size();
    const size_t count = wave.back().first - first + wave.back().parts.size();
    CAIRN_TRY(ForEachRequest(storage_, count, [&](size_t i) -> Result<void> {
      CAIRN_TRY_ASSIGN(wave[i / per_batch].parts[i % per_batch],
                       AwaitPart(first + static_cast<uint32_t>(i)));
      return {};
    }));
    CAIRN_TRY(RunOnThreads(wave.size(), "the parts of the ranks",
                           [&](size_t i) { return DecodeUnlessLarge(wave[i]); }));
    return wave;
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

  Result<void> DecodeUnlessLarge(Batch& batch) const {
    uint64_t decoded_bytes = 0;
    bool is_large = false;
    for (const auto& part : batch.parts) {
      decoded_bytes += ClaimedBytes(part);
      is_large |= HasDataObjects(part);
    }
    if (is_large || decoded_bytes > kMaxDecodedBytes) return {};
    batch.is_decoded = true;
    return Decode(batch, [](RankBatch&) { return Result<void>(); });
  }

  /// Verifies the parts and collects their records. Calls `collected` after each record.
  template <typename Collected>
  Result<void> Decode(Batch& batch, const Collected& collected) const {
    RankBatch& records = *batch.records;
    for (size_t i = 0; i < batch.parts.size(); ++i) {
      const uint32_t rank = batch.first + static_cast<uint32_t>(i);
      records.BeginPart(rank);
      CAIRN_TRY(ReadFetchedPart(storage_, PartName(attempt_.attempt, rank), batch.parts[i],
                                attempt_.HeaderOf(rank),
                                [&](const RecordView& record) -> Result<void> {
                                  CAIRN_TRY(records.Add(record));
                                  return collected(records);
                                }));
    }
    return records.Finish();
  }

  Result<void> AddBatch(Batch& batch) {
    if (!batch.is_decoded) {
      CAIRN_TRY(Decode(batch, [&](RankBatch& records) -> Result<void> {
        if (records.size_bytes() < kPieceBytes) return {};
        CAIRN_TRY(records.Finish());
        CAIRN_TRY(AddRecords(records));
        records.Clear();
        return {};
      }));
    }
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
  const size_t threads_ = WorkerThreads();
  std::vector<std::unique_ptr<RankBatch>> unused_;
  uint32_t next_rank_ = 1;  // the first one whose part is not being loaded yet
  std::atomic<bool> is_cancelled_ = false;
  std::future<Result<Wave>> loading_;  // The last member: its destructor waits for the threads,
                                       // which use the others.
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
