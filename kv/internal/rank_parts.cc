// The ranks communicate only through files: manifests, shared records, and the outcome
// (attempt_outcome.h).

#include "kv/internal/rank_parts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/internal/commit/attempt_outcome.h"
#include "kv/internal/commit/commit.h"
#include "kv/internal/io/file.h"

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

// Waits for the parts of the other ranks and copies their records into the manifest of rank 0.
class PartGatherer {
 public:
  PartGatherer(StepAttempt& attempt, const RankRecordCallback& on_record)
      : attempt_(attempt), on_record_(on_record) {}

  // Returns the failure of a rank, or kUnavailable if the manifest is missing at the deadline.
  Result<void> AwaitManifest(uint32_t rank) const {
    const std::string path = attempt_.store->paths.pending_manifest(attempt_.attempt, rank);
    Poll poll(attempt_.options.deadline);
    while (!Exists(path)) {
      if (auto failure = FindFailure(attempt_.store->paths, attempt_.attempt)) {
        return Fail(*std::move(failure));
      }
      if (!poll.Again()) return Fail(MissingRanks(rank));
    }
    return {};
  }

  Result<void> CopyManifest(uint32_t rank) {
    const ManifestHeader expected{.store_uuid = attempt_.store->uuid,
                                  .step = attempt_.step,
                                  .rank = rank,
                                  .world_size = attempt_.options.world_size,
                                  .attempt = attempt_.attempt};
    segments_of_rank_.clear();
    CAIRN_TRY(ReadManifest(
        attempt_.store->paths.pending_manifest(attempt_.attempt, rank),
        [&](Column column, std::string_view key, std::span<const std::byte> value) {
          return AddRecord(rank, column, key, value);
        },
        &expected, attempt_.manifest.get()));
    return {};
  }

 private:
  Error MissingRanks(uint32_t first) const {
    constexpr uint64_t kNamed = 8;
    std::string names;
    uint64_t count = 0;
    for (uint32_t rank = first; rank < attempt_.options.world_size; ++rank) {
      if (Exists(attempt_.store->paths.pending_manifest(attempt_.attempt, rank))) continue;
      if (count++ < kNamed) names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
    }
    return Error{.code = ErrorCode::kUnavailable,
                 .message = fmt::format(
                     "{} of {} ranks had not written their part at the deadline: {}{}; if they "
                     "died, restart the job, otherwise allow more time",
                     count, attempt_.options.world_size, names, count > kNamed ? ", ..." : ""),
                 .file = attempt_.store->paths.attempt(attempt_.attempt),
                 .step = attempt_.step};
  }

  Result<void> AddRecord(uint32_t rank, Column column, std::string_view key,
                         std::span<const std::byte> value) {
    switch (column) {
      case Column::kChunks:
        attempt_.collected.Add(column, key, value);
        return on_record_(rank, column, key, value);
      case Column::kStructures:
        return AddShared(rank, key);
      case Column::kSteps: {
        CAIRN_TRY_ASSIGN(const StepEntry part, DecodeStep(value));
        attempt_.chunk_count += part.info.chunk_count;
        attempt_.reused_chunk_count += part.info.reused_chunk_count;
        attempt_.written_bytes_of_others += part.info.written_bytes;
        return {};
      }
      case Column::kSegments: {
        CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(value));
        // A segment that the rank wrote has its next number; every other one must be in the index.
        const uint64_t own = SegmentIdOf(attempt_.attempt, rank, segments_of_rank_.size());
        attempt_.collected.Add(column, key, value);
        if (info.segment_id == own) {
          segments_of_rank_.insert(own);
        } else {
          attempt_.referenced_segments.insert(info.segment_id);
        }
        return {};
      }
      default:
        return Fail(
            ErrorCode::kDataLoss,
            fmt::format("the manifest of rank {} contains a {} record", rank, ColumnName(column)));
    }
  }

  Result<void> AddShared(uint32_t rank, std::string_view digest) {
    if (digest.size() != kDigestKeyBytes) {
      return Fail(ErrorCode::kDataLoss,
                  "a manifest refers to shared records by a key that is not a digest");
    }
    if (!attempt_.known_shared_records.insert(std::string(digest)).second) return {};
    const std::string path =
        SharedPath(attempt_.store->paths, attempt_.attempt, DigestName(digest));
    std::vector<SharedRecord> records;
    CAIRN_TRY(ReadManifest(
        path,
        [&](Column column, std::string_view key, std::span<const std::byte> value) -> Result<void> {
          records.push_back({column, std::string(key), {value.begin(), value.end()}});
          return {};
        }));
    if (DigestOf(records) != digest) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "the digest of the shared records differs from the file's name",
                        .file = path});
    }
    for (const SharedRecord& record : records) {
      CAIRN_TRY(on_record_(rank, record.column, record.key, record.value));
    }
    return {};
  }

  StepAttempt& attempt_;
  const RankRecordCallback& on_record_;
  std::set<uint64_t> segments_of_rank_;  // written by the rank whose manifest is being copied
};

// Returns the generation of the attempt's step, for a rank that did not receive the outcome.
Result<uint64_t> FindInIndex(const StepAttempt& attempt, std::string_view why) {
  const auto fail = [&](std::string_view verdict) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = fmt::format("{}; {}", why, verdict),
                      .file = attempt.store->paths.root,
                      .step = attempt.step});
  };
  const auto index = Index::Open(attempt.store->paths.root, /*writable=*/false, /*create=*/false,
                                 attempt.store->options.deadline);
  if (!index) return fail("the index does not open, so the step may or may not exist");
  const auto steps = LoadSteps(**index);
  if (!steps) return fail("the index cannot be read, so the step may or may not exist");
  for (const StepEntry& entry : *steps) {
    if (entry.info.attempt == attempt.attempt) return entry.info.generation;
  }
  return fail("the step is not committed yet");
}

}  // namespace

Result<void> AddSharedRecords(StepAttempt& attempt, std::span<const SharedRecord> records) {
  CAIRN_CHECK(attempt.has_ranks() && !attempt.gathered);
  const std::string key = DigestOf(records);
  if (!attempt.known_shared_records.insert(key).second || attempt.options.rank == 0) return {};
  CAIRN_TRY(attempt.manifest->Add(Column::kStructures, key, {}));

  const std::string path = SharedPath(attempt.store->paths, attempt.attempt, DigestName(key));
  if (Exists(path)) return {};
  const std::string part = fmt::format("{}.{}", path, attempt.options.rank);
  const ManifestHeader header{.store_uuid = attempt.store->uuid,
                              .step = attempt.step,
                              .rank = 0,  // independent of the rank: the digest is the name
                              .world_size = attempt.options.world_size,
                              .created_unix_ns = attempt.created_unix_ns,
                              .attempt = attempt.attempt};
  CAIRN_TRY_ASSIGN(const auto writer, ManifestWriter::Create(part, header));
  for (const SharedRecord& record : records) {
    CAIRN_TRY(writer->Add(record.column, record.key, record.value));
  }
  // Not synced: rank 0 copies the records that it needs to its own manifest.
  CAIRN_TRY(writer->Finish(/*sync=*/false));
  // Many ranks may do this concurrently. The first file remains, because rank 0 may be reading it.
  if (::link(part.c_str(), path.c_str()) != 0 && !Exists(path)) {
    return Rename(part, path, "shared.rename");  // the file system does not support links
  }
  return RemoveFile(part);
}

Result<void> GatherParts(StepAttempt& attempt, const RankRecordCallback& on_record) {
  CAIRN_CHECK(attempt.has_ranks() && !attempt.store->joined && !attempt.gathered);
  attempt.failed = true;  // until all parts have been copied
  CAIRN_TRY(attempt.segments.Seal());
  PartGatherer gatherer(attempt, on_record);
  for (uint32_t rank = 1; rank < attempt.options.world_size; ++rank) {
    CAIRN_TRY(gatherer.AwaitManifest(rank));
    CAIRN_TRY(gatherer.CopyManifest(rank));
  }
  attempt.gathered = true;
  attempt.failed = false;
  return {};
}

Result<void> PreparePart(StepAttempt& attempt, const StepSummary& summary) {
  CAIRN_CHECK(attempt.store->joined);
  attempt.failed = true;
  CAIRN_TRY(attempt.SealSegments());
  CAIRN_TRY(attempt.AddReferencedSegments());
  if (!Exists(attempt.store->paths.attempt(attempt.attempt))) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "the attempt was aborted: rank 0 has closed the store, or another "
                                 "job has taken it over",
                      .file = attempt.store->paths.root,
                      .step = attempt.step});
  }
  CAIRN_TRY(attempt.WriteStepRecord(summary));
  CAIRN_TRY(attempt.manifest->Finish());
  attempt.manifest.reset();
  attempt.prepared = attempt.InfoOf(summary);
  // From now on rank 0 may commit the part, so its files remain unless rank 0 states that it has
  // discarded the part. The name need not be durable, because rank 0 copies the manifest.
  attempt.finished = true;
  return Rename(attempt.ManifestPath(), attempt.PreparedManifestPath(), "manifest.rename");
}

Result<uint64_t> AwaitGeneration(StepAttempt& attempt) {
  CAIRN_CHECK(attempt.store->joined && attempt.finished);
  Poll poll(attempt.options.decision_deadline, attempt.options.world_size);
  while (true) {
    if (auto outcome = FindOutcome(attempt.store->paths, attempt.attempt)) {
      if (outcome->discarded) attempt.finished = false;
      return std::move(outcome->generation);
    }
    if (!Exists(attempt.store->paths.attempt(attempt.attempt))) {
      return FindInIndex(attempt, "rank 0 has closed the store, or another job has taken it over");
    }
    if (!poll.Again()) {
      return FindInIndex(attempt, "rank 0 did not state the outcome before the deadline");
    }
  }
}

}  // namespace cairn::kv::internal
