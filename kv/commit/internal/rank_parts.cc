// The ranks communicate only through objects: parts, shared records, and the outcome
// (attempt_outcome.h).

#include "kv/commit/internal/rank_parts.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/commit/internal/part_file.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/lease.h"
#include "kv/root/internal/root_log.h"
#include "kv/root/internal/step_list.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

bool Exists(Storage& storage, const std::string& name) {
  return ObjectExists(storage, name).value_or(false);
}

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

// Returns the digest of the words of shared records in a part, in hexadecimal digits.
std::string DigestOf(std::span<const SharedRecord> records) {
  std::vector<uint64_t> words;
  for (const SharedRecord& record : records) {
    AppendRecord(words, TableKey(record.column, record.key), record.value);
  }
  return PayloadDigest(std::as_bytes(std::span(words))).ToHex();
}

}  // namespace

Result<void> AddSharedRecords(StepAttempt& attempt, std::span<const SharedRecord> records) {
  const std::string digest = DigestOf(records);
  if (!attempt.known_shared_records.insert(digest).second || attempt.part == nullptr) return {};
  CAIRN_TRY(attempt.AddEntry(Column::kStructures, digest, {}));

  const std::string name = SharedName(attempt.attempt, digest);
  if (Exists(*attempt.store->storage, name)) return {};
  // Its header does not depend on the rank.
  PartWriter writer(attempt.store->storage, name, attempt.HeaderOf(0));
  for (const SharedRecord& record : records) {
    CAIRN_TRY(writer.Add({.key = TableKey(record.column, record.key), .value = record.value}));
  }
  Result<void> put = writer.Finish();
  // Many ranks may do this concurrently. The first object remains.
  if (!put && put.error().code == ErrorCode::kConflict) return {};
  return put;
}

Result<std::vector<SharedRecord>> ReadSharedRecords(const StepAttempt& attempt,
                                                    const std::string& digest) {
  Storage& storage = *attempt.store->storage;
  const std::string name = SharedName(attempt.attempt, digest);
  const std::string path = ObjectPath(storage.address(), name);
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> part, FetchPart(storage, name));
  std::vector<SharedRecord> records;
  CAIRN_TRY(
      ReadPart(path, part, attempt.HeaderOf(0), [&](const TableRecord& record) -> Result<void> {
        records.push_back({.column = record.column(),
                           .key = std::string(record.key.substr(1)),
                           .value = {record.value.begin(), record.value.end()}});
        return {};
      }));
  if (DigestOf(records) != digest) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the digest of the shared records differs from their name",
                      .file = path});
  }
  return records;
}

Result<void> PreparePart(StepAttempt& attempt, const StepSummary& summary) {
  attempt.failed = true;
  CAIRN_TRY(attempt.SealSegments());
  if (!SessionIsOpen(attempt)) {
    const auto outcome = FindOutcome(*attempt.store->storage, attempt.attempt);
    if (outcome && !outcome->generation) return Fail(outcome->generation.error());
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "the attempt was aborted: rank 0 has closed the store, or another "
                                 "job has taken it over",
                      .file = attempt.store->storage->address(),
                      .step = attempt.step});
  }
  attempt.prepared = attempt.InfoOf(summary);
  CAIRN_TRY(attempt.AddEntry(Column::kSteps, "", EncodeStep(attempt.prepared)));
  // From now on rank 0 may commit the part, even if the response to its put is lost. So its objects
  // remain unless rank 0 states that it has discarded the part.
  attempt.finished = true;
  Result<void> put = attempt.part->Finish();
  if (put) return {};
  const auto exists =
      ObjectExists(*attempt.store->storage, PartName(attempt.attempt, attempt.options.rank));
  if (exists) {
    // Rank 0 commits a part that it sees, so the part need not be durable.
    const bool is_put = *exists && put.error().code != ErrorCode::kConflict;
    return is_put ? Result<void>() : put;
  }
  Error error = std::move(put).error();
  error.message += "; rank 0 may see the part of this rank, so the step may or may not exist";
  return Fail(std::move(error));
}

Result<uint64_t> AwaitGeneration(StepAttempt& attempt) {
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
