// Adds the records of an attempt, and removes what an abandoned attempt has written.

#include "kv/commit/internal/step_attempt.h"

#include <algorithm>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kKeptOutcomes = 2;  // attempts whose outcome a slow rank may still read

// Removes the objects of attempts that ended before the last kKeptOutcomes, which include this one.
void RetireAttempts(StoreState& store, const std::string& attempt) {
  std::vector<std::string> retired;
  {
    const MutexLock lock(store.mutex);
    auto& attempts = store.finished_attempts;
    RecordAttempt(attempt, attempts);
    while (attempts.size() > kKeptOutcomes) {
      retired.push_back(std::move(attempts.front()));
      attempts.pop_front();
    }
  }
  for (const std::string& old : retired) ForgetAttempt(*store.storage, old);
}

}  // namespace

StepAttempt::StepAttempt(std::shared_ptr<StoreState> store_state, uint64_t step_number,
                         const BeginOptions& begin_options, std::string attempt_name,
                         Continuation continued)
    : store(std::move(store_state)),
      step(step_number),
      options(begin_options),
      attempt(std::move(attempt_name)),
      continuation(std::move(continued)),
      created_unix_ns(options.is_derived && continuation.step ? continuation.step->created_unix_ns
                                                              : NowUnixNs()),
      segments({.storage = store->storage,
                .store_uuid = store->uuid,
                .epoch = store->epoch,
                .step = step,
                .rank = options.rank,
                .created_unix_ns = created_unix_ns,
                .attempt = attempt,
                .io = *store->options.io,
                .pool = store->pool.get(),
                .queues = store->queues.get(),
                .free_space = [this](uint64_t& seen) { return FreeSpaceFor(seen); }},
               [this](const TableRecord& record) { return AddEntry(record); }),
      records(store->storage, store->epoch, RecordSorter::kMemoryBytes,
              [this](uint64_t& seen) { return FreeSpaceFor(seen); }) {
  store->has_saved = true;
  if (!store->joined) return;
  part = std::make_unique<PartWriter>(store->storage, PartName(attempt, options.rank),
                                      HeaderOf(options.rank));
}

PartHeader StepAttempt::HeaderOf(uint32_t rank) const {
  return {.store_uuid = store->uuid,
          .step = step,
          .rank = rank,
          .world_size = options.world_size,
          .attempt = attempt};
}

StepAttempt::~StepAttempt() {
  CleanUp([&] {
    segments.Abandon();
    if (!finished && !store->outcome_unknown) {
      RemoveOwnObjects();
    }
  });
  CleanUp([&] {
    if (has_ranks() && options.rank == 0) RetireAttempts(*store, attempt);
  });
  store->step_writer_alive = false;
}

void StepAttempt::RemoveOwnObjects() {
  // The next open for writing removes what cannot be removed now.
  for (const SegmentInfo& segment : segments.sealed()) {
    (void)store->storage->Remove(SegmentObject(segment));
  }
  // The other ranks read the outcome of rank 0, which RetireAttempts removes later.
  if (store->joined) (void)store->storage->Remove(PartName(attempt, options.rank));
}

Result<void> StepAttempt::AddEntry(Column column, std::string_view key,
                                   std::span<const std::byte> value) {
  key_.assign(1, static_cast<char>(column)).append(key);
  return AddEntry({.key = key_, .value = value});
}

Result<void> StepAttempt::AddEntry(const TableRecord& record) {
  return part != nullptr ? part->Add(record) : records.Add(record);
}

Result<void> StepAttempt::CheckUsable() const {
  CAIRN_TRY(CheckNotForked(*store));
  if (!failed && !finished) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message = "this attempt has failed or is committed; begin a new one",
                    .step = step});
}

StepInfo StepAttempt::InfoOf(const StepSummary& summary) const {
  return StepInfo{.step = step,
                  .generation = 0,  // assigned by the commit
                  .created_unix_ns = created_unix_ns,
                  .world_size = options.world_size,
                  .attempt = attempt,
                  .base_step = summary.base_step,
                  .tensor_count = summary.tensor_count,
                  .value_count = summary.value_count,
                  .chunk_count = chunk_count,
                  .reused_chunk_count = reused_chunk_count,
                  .logical_bytes = summary.logical_bytes,
                  .written_bytes = written_bytes(),
                  .structure = structure,
                  .metrics = options.metrics,
                  .note = options.note};
}

Result<void> StepAttempt::SealSegments() {
  seal_failed_ = true;
  CAIRN_TRY(segments.Seal());
  LocalFiles* const files = store->storage->local_files();
  if (files != nullptr && segments.sealed().size() != synced_segments_) {
    CAIRN_TRY(files->SyncNames(ObjectFolder(ObjectKind::kSegment)));
    synced_segments_ = segments.sealed().size();
  }
  seal_failed_ = false;
  return {};
}

void StepAttempt::OpenLikelyBase() const {
  if (store->storage->transfer_sizes().small_requests <= 1) return;
  const auto base = CurrentRoot(*store)->steps.Latest();
  if (base && *base != nullptr) (void)store->tables->OpenStack((*base)->tables);
}

std::optional<std::string> StepAttempt::FreeSpaceFor(uint64_t& seen) {
  return committing ? FreeSpaceForCommit(*store, seen) : FreeSpaceForSave(*store, seen);
}

}  // namespace cairn::kv::internal
