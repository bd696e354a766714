// The ranks communicate only through objects: parts, shared records, and the outcome
// (attempt_outcome.h).

#include "kv/internal/rank_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/internal/commit/root_change.h"
#include "kv/internal/io/file.h"
#include "kv/internal/parts/attempt_outcome.h"
#include "kv/internal/parts/part_file.h"
#include "kv/internal/records/kv_records.h"
#include "kv/internal/root/lease.h"
#include "kv/internal/root/root_log.h"
#include "kv/internal/root/step_list.h"
#include "kv/internal/segment/segment_stream.h"
#include "kv/internal/step_commit.h"
#include "kv/internal/storage/concurrent_requests.h"
#include "kv/internal/storage/name_check.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kDigestKeyBytes = 16;

std::string DigestKey(const Digest& digest) { return NumberKey(digest.hi) + NumberKey(digest.lo); }

std::string DigestName(std::string_view key) {
  return fmt::format("{:016x}{:016x}", ReadBigEndian(key.data()), ReadBigEndian(key.data() + 8));
}

// Returns the key of shared records: the digest of their lengths and contents, in order.
std::string DigestOf(std::span<const SharedRecord> records) {
  std::vector<std::byte> content;
  for (const SharedRecord& record : records) {
    const auto add = [&](std::span<const std::byte> bytes) {
      const std::string length = NumberKey(bytes.size());
      content.insert(content.end(), AsBytes(length).begin(), AsBytes(length).end());
      content.insert(content.end(), bytes.begin(), bytes.end());
    };
    content.push_back(static_cast<std::byte>(record.column));
    add(AsBytes(record.key));
    add(record.value);
  }
  return DigestKey(PayloadDigest(content));
}

// The header of shared records. It does not depend on the rank: their digest is their name.
PartHeader SharedHeader(const StepAttempt& attempt) {
  return {.store_uuid = attempt.store->uuid,
          .step = attempt.step,
          .rank = 0,
          .world_size = attempt.options.world_size,
          .created_unix_ns = attempt.created_unix_ns,
          .attempt = attempt.attempt};
}

bool Exists(Storage& storage, const std::string& name) {
  return ObjectExists(storage, name).value_or(false);
}

// Waits for the parts of the other ranks and adds their records to those of rank 0. Parts are added
// in order, while a background thread fetches those that follow.
class PartGatherer {
 public:
  PartGatherer(StepAttempt& attempt, const RankRecordCallback& on_record)
      : attempt_(attempt), storage_(*attempt.store->storage), on_record_(on_record) {}

  /// Adds the parts of all ranks but 0.
  Result<void> AddAll() {
    const uint32_t world_size = attempt_.options.world_size;
    // The first batch is one part, which shows how large parts are.
    CAIRN_TRY_ASSIGN(Batch batch, Fetch(1, 1));
    while (true) {
      const uint32_t following = batch.first + static_cast<uint32_t>(batch.parts.size());
      const bool is_last = following == world_size;
      std::future<Result<Batch>> fetched;
      if (!is_last) {
        const uint32_t count = std::min(BatchSize(batch), world_size - following);
        // Deferred if the system has no more threads.
        fetched = std::async(std::launch::async | std::launch::deferred,
                             [this, following, count] { return Fetch(following, count); });
      }
      Result<void> added = AddBatch(batch);
      is_cancelled_ = !added;
      if (!added || is_last) return added;
      CAIRN_TRY_ASSIGN(batch, fetched.get());
    }
  }

 private:
  // The parts of consecutive ranks.
  struct Batch {
    uint32_t first = 0;
    std::vector<std::vector<std::byte>> parts;
  };
  static constexpr size_t kBatchBytes = 4 << 20;  // about; but at least one part
  static constexpr size_t kMaxBatch = 64;         // parts

  /// Returns how many parts to fetch after `batch`.
  static uint32_t BatchSize(const Batch& batch) {
    size_t largest = 1;
    for (const auto& part : batch.parts) largest = std::max(largest, part.size());
    return static_cast<uint32_t>(std::clamp<size_t>(kBatchBytes / largest, 1, kMaxBatch));
  }

  /// Waits for the parts of `count` ranks from `first` on.
  Result<Batch> Fetch(uint32_t first, uint32_t count) const {
    Batch batch{.first = first, .parts = std::vector<std::vector<std::byte>>(count)};
    CAIRN_TRY(ForEachRequest(storage_, count, [&](size_t i) -> Result<void> {
      CAIRN_TRY_ASSIGN(batch.parts[i], AwaitPart(first + static_cast<uint32_t>(i)));
      return {};
    }));
    return batch;
  }

  // Returns the part. Returns the failure of a rank, or kUnavailable if the part is missing at the
  // deadline.
  Result<std::vector<std::byte>> AwaitPart(uint32_t rank) const {
    const std::string name = PartName(attempt_.attempt, rank);
    Poll poll(attempt_.options.deadline);
    while (true) {
      auto part = FetchPart(storage_, name);
      if (part || part.error().code != ErrorCode::kNotFound) return part;
      if (auto failure = FindFailure(storage_, attempt_.attempt)) return Fail(*std::move(failure));
      if (is_cancelled_) return Fail(ErrorCode::kCancelled, "another part could not be added");
      if (!poll.Again()) return Fail(MissingRanks(rank));
    }
  }

  Result<void> AddBatch(const Batch& batch) {
    for (size_t i = 0; i < batch.parts.size(); ++i) {
      CAIRN_TRY(AddPart(batch.first + static_cast<uint32_t>(i), batch.parts[i]));
    }
    return {};
  }

  Result<void> AddPart(uint32_t rank, std::span<const std::byte> part) {
    const PartHeader expected{.store_uuid = attempt_.store->uuid,
                              .step = attempt_.step,
                              .rank = rank,
                              .world_size = attempt_.options.world_size,
                              .attempt = attempt_.attempt};
    own_segment_count_ = 0;
    return ReadFetchedPart(
        storage_, PartName(attempt_.attempt, rank), part, expected,
        [&](Column column, std::string_view key, std::span<const std::byte> value) {
          return AddRecord(rank, column, key, value);
        });
  }

  Error MissingRanks(uint32_t first) const {
    constexpr uint64_t kNamed = 8;
    std::string names;
    uint64_t count = 0;
    for (uint32_t rank = first; rank < attempt_.options.world_size; ++rank) {
      if (Exists(storage_, PartName(attempt_.attempt, rank))) continue;
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

  Result<void> AddRecord(uint32_t rank, Column column, std::string_view key,
                         std::span<const std::byte> value) {
    switch (column) {
      case Column::kChunks:
        CAIRN_TRY(attempt_.records.Add(column, key, value));
        return on_record_(rank, column, key, value);
      case Column::kStructures:
        return AddShared(rank, key);
      case Column::kSteps: {
        CAIRN_TRY_ASSIGN(const StepInfo part, DecodeStep(value));
        attempt_.chunk_count += part.chunk_count;
        attempt_.reused_chunk_count += part.reused_chunk_count;
        attempt_.written_bytes_of_others += part.written_bytes;
        return {};
      }
      case Column::kSegments: {
        CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(value));
        if (info.segment_id != SegmentIdOf(attempt_.attempt, rank, own_segment_count_++) ||
            info.epoch != attempt_.store->epoch) {
          return Fail(ErrorCode::kDataLoss,
                      fmt::format("the part of rank {} contains a segment of another", rank));
        }
        return attempt_.records.Add(column, key, value);
      }
      default:
        return Fail(ErrorCode::kDataLoss, fmt::format("the part of rank {} contains a {} record",
                                                      rank, ColumnName(column)));
    }
  }

  Result<void> AddShared(uint32_t rank, std::string_view digest) {
    if (digest.size() != kDigestKeyBytes) {
      return Fail(ErrorCode::kDataLoss,
                  "a part refers to shared records by a key that is not a digest");
    }
    if (!attempt_.known_shared_records.insert(std::string(digest)).second) return {};
    const std::string name = SharedName(attempt_.attempt, DigestName(digest));
    std::vector<SharedRecord> records;
    CAIRN_TRY(ReadPart(
        storage_, name, SharedHeader(attempt_),
        [&](Column column, std::string_view key, std::span<const std::byte> value) -> Result<void> {
          records.push_back({column, std::string(key), {value.begin(), value.end()}});
          return {};
        }));
    if (DigestOf(records) != digest) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "the digest of the shared records differs from their name",
                        .file = ObjectPath(storage_.address(), name)});
    }
    for (const SharedRecord& record : records) {
      CAIRN_TRY(on_record_(rank, record.column, record.key, record.value));
    }
    return {};
  }

  StepAttempt& attempt_;
  Storage& storage_;
  const RankRecordCallback& on_record_;
  std::atomic<bool> is_cancelled_ = false;
  uint64_t own_segment_count_ = 0;  // of the rank whose part is being added
};

// Returns the generation of the attempt's step, for a rank that did not receive the outcome.
Result<uint64_t> FindInNewestRoot(const StepAttempt& attempt, std::string_view why) {
  const std::shared_ptr<Storage>& storage = attempt.store->storage;
  const auto fail = [&](std::string_view verdict) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = fmt::format("{}; {}", why, verdict),
                      .file = storage->address(),
                      .step = attempt.step});
  };
  const auto root = FindNewest(*storage);
  if (!root || !*root) return fail("no root can be read, so the step may or may not exist");
  const auto entry = StepList(storage, **root).Find(attempt.step);
  if (!entry) return fail("its entry cannot be read, so the step may or may not exist");
  if (*entry != nullptr && (*entry)->info.attempt == attempt.attempt) {
    return (*entry)->info.generation;
  }
  return fail("the step is not committed yet");
}

// Returns whether rank 0 still has the store open.
bool SessionIsOpen(const StepAttempt& attempt) {
  return Exists(*attempt.store->storage, LeaseName(attempt.store->session));
}

}  // namespace

Result<void> AddSharedRecords(StepAttempt& attempt, std::span<const SharedRecord> records) {
  CAIRN_CHECK(attempt.has_ranks() && !attempt.gathered);
  const std::string key = DigestOf(records);
  if (!attempt.known_shared_records.insert(key).second || attempt.options.rank == 0) return {};
  CAIRN_TRY(attempt.part->Add(Column::kStructures, key, {}));

  const std::string name = SharedName(attempt.attempt, DigestName(key));
  if (Exists(*attempt.store->storage, name)) return {};
  PartWriter writer(attempt.store->storage, name, SharedHeader(attempt));
  for (const SharedRecord& record : records) {
    CAIRN_TRY(writer.Add(record.column, record.key, record.value));
  }
  Result<void> put = writer.Finish();
  // Many ranks may do this concurrently. The first object remains.
  if (!put && put.error().code == ErrorCode::kConflict) return {};
  return put;
}

Result<void> GatherParts(StepAttempt& attempt, const RankRecordCallback& on_record) {
  CAIRN_CHECK(attempt.has_ranks() && !attempt.store->joined && !attempt.gathered);
  attempt.failed = true;  // until all parts have been added
  CAIRN_TRY(attempt.segments.Seal());
  OpenLikelyBase(*attempt.store);  // while other ranks are still writing
  CAIRN_TRY(PartGatherer(attempt, on_record).AddAll());
  attempt.gathered = true;
  attempt.failed = false;
  return {};
}

Result<void> PreparePart(StepAttempt& attempt, const StepSummary& summary) {
  CAIRN_CHECK(attempt.store->joined);
  attempt.failed = true;
  CAIRN_TRY(attempt.SealSegments());
  if (!SessionIsOpen(attempt)) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "the attempt was aborted: rank 0 has closed the store, or another "
                                 "job has taken it over",
                      .file = attempt.store->storage->address(),
                      .step = attempt.step});
  }
  CAIRN_TRY(attempt.AddStepRecordToPart(summary));
  attempt.prepared = attempt.InfoOf(summary);
  CAIRN_TRY(attempt.part->Finish());
  // From now on rank 0 may commit the part, so its objects remain unless rank 0 states that it has
  // discarded the part.
  attempt.finished = true;
  return {};
}

Result<uint64_t> AwaitGeneration(StepAttempt& attempt) {
  CAIRN_CHECK(attempt.store->joined && attempt.finished);
  Storage& storage = *attempt.store->storage;
  Poll poll(attempt.options.decision_deadline, attempt.options.world_size);
  while (true) {
    if (auto outcome = FindOutcome(storage, attempt.attempt)) {
      if (outcome->discarded) attempt.finished = false;
      return std::move(outcome->generation);
    }
    // Rank 0 removes the parts of attempts that have ended.
    if (!SessionIsOpen(attempt) ||
        !Exists(storage, PartName(attempt.attempt, attempt.options.rank))) {
      return FindInNewestRoot(attempt,
                              "rank 0 has closed the store, or another job has taken it over");
    }
    if (!poll.Again()) {
      return FindInNewestRoot(attempt, "rank 0 did not state the outcome before the deadline");
    }
  }
}

}  // namespace cairn::kv::internal
