// Adds the records of an attempt, and removes what an abandoned attempt has written.

#include "kv/internal/step_attempt.h"

#include <chrono>
#include <utility>

#include "kv/internal/commit/attempt_outcome.h"
#include "kv/internal/commit/commit.h"
#include "kv/internal/io/file.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kKeptOutcomes = 2;  // attempts whose outcome a slow rank may still read

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Removes the files of attempts that ended before the last kKeptOutcomes, which include this one.
void RetireAttempts(StoreState& store, const std::string& attempt) {
  const MutexLock lock(store.mutex);
  auto& attempts = store.finished_attempts;
  RecordAttempt(attempt, attempts);
  while (attempts.size() > kKeptOutcomes) {
    ForgetAttempt(store.paths, attempts.front());
    attempts.pop_front();
  }
}

}  // namespace

StepAttempt::StepAttempt(std::shared_ptr<StoreState> store_state, uint64_t step_number,
                         const BeginOptions& begin_options, std::string attempt_name)
    : store(std::move(store_state)),
      step(step_number),
      options(begin_options),
      attempt(std::move(attempt_name)),
      created_unix_ns(UnixNow()),
      segments({.directory = store->paths.segments(),
                .store_uuid = store->uuid,
                .step = step,
                .rank = options.rank,
                .created_unix_ns = created_unix_ns,
                .attempt = attempt,
                .io = *store->options.io,
                .pool = store->pool.get()},
               [this](Column column, std::string_view key, std::span<const std::byte> value) {
                 return AddEntry(column, key, value);
               }) {}

StepAttempt::~StepAttempt() {
  segments.Abandon();
  if (!finished && !store->outcome_unknown) RemoveOwnFiles();
  if (has_ranks() && options.rank == 0) RetireAttempts(*store, attempt);
  store->step_writer_alive = false;
}

void StepAttempt::RemoveOwnFiles() {
  // The next open for writing removes what cannot be removed now.
  for (const SegmentInfo& segment : segments.sealed()) {
    (void)RemoveFile(store->paths.segments() + "/" + segment.name);
  }
  manifest.reset();
  if (has_ranks()) {  // the other ranks remove their own files, and read the outcome of rank 0
    (void)RemoveFile(ManifestPath());
    (void)RemoveFile(PreparedManifestPath());
  } else {
    (void)RemoveTree(store->paths.attempt(attempt));
  }
}

Result<void> StepAttempt::Start() {
  CAIRN_TRY(MakeDirectory(store->paths.attempt(attempt)));
  const ManifestHeader header{.store_uuid = store->uuid,
                              .step = step,
                              .rank = options.rank,
                              // Rank 0 copies the manifests of all others into its own.
                              .world_size = store->joined ? options.world_size : 1,
                              .created_unix_ns = created_unix_ns,
                              .attempt = attempt};
  CAIRN_TRY_ASSIGN(manifest, ManifestWriter::Create(ManifestPath(), header));
  return {};
}

std::string StepAttempt::PreparedManifestPath() const {
  return store->paths.pending_manifest(attempt, options.rank);
}

std::string StepAttempt::ManifestPath() const {
  return store->joined ? PreparedManifestPath() + ".part" : PreparedManifestPath();
}

Result<void> StepAttempt::AddEntry(Column column, std::string_view key,
                                   std::span<const std::byte> value) {
  if (has_ranks() && !store->joined) collected.Add(column, key, value);
  return manifest->Add(column, key, value);
}

Result<void> StepAttempt::CheckUsable() const {
  if (!failed && !finished) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message = "this attempt has failed or is committed; begin a new one",
                    .step = step});
}

Result<void> StepAttempt::AddReferencedSegments() {
  std::shared_ptr<Index> index;
  {
    const MutexLock lock(store->mutex);  // Latest replaces the index of a reader
    index = store->index;
  }
  for (const uint64_t segment_id : referenced_segments) {
    CAIRN_TRY_ASSIGN(const auto record, index->Get(Column::kSegments, NumberKey(segment_id)));
    if (!record) return Fail(BaseReplacedError(step));
    CAIRN_TRY(AddEntry(Column::kSegments, NumberKey(segment_id), *record));
  }
  return {};
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
                  .structure = structure};
}

Result<void> StepAttempt::WriteStepRecord(const StepSummary& summary) {
  const StepEntry entry{.info = InfoOf(summary), .manifests = {}};
  return AddEntry(Column::kSteps, NumberKey(step), EncodeStep(entry));
}

Result<void> StepAttempt::SealSegments() {
  CAIRN_TRY(segments.Seal());
  if (segments.sealed().empty()) return {};
  return SyncDirectory(store->paths.segments(), "segment.directory_sync");
}

}  // namespace cairn::kv::internal
