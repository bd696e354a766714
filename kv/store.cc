// Opening, creating and closing a store; deleting steps.

#include "kv/store.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kv/internal/commit/attempt_outcome.h"
#include "kv/internal/commit/commit.h"
#include "kv/internal/commit/recovery.h"
#include "kv/internal/commit/store_identity.h"
#include "kv/internal/io/io_environment.h"
#include "kv/internal/snapshot_state.h"
#include "kv/internal/step_attempt.h"
#include "kv/mutex.h"
#include "kv/snapshot.h"
#include "kv/step_writer.h"
#include "kv/thread_annotations.h"

namespace cairn::kv {

using internal::CommitFile;
using internal::Index;
using internal::StepEntry;
using internal::StoreState;

namespace {

// Compares the steps of an index with the manifests that commits/ had before the index was opened.
// kDataLoss: a committed step is missing; with tolerate_lost_steps a note of the open instead.
Result<void> CheckNothingLost(StoreState& state, const std::vector<CommitFile>& before,
                              const std::vector<StepEntry>& steps) CAIRN_REQUIRES(state.mutex) {
  std::set<uint64_t> live;
  for (const StepEntry& entry : steps) live.insert(entry.info.generation);
  std::optional<std::set<uint64_t>> after;  // listed only if something is missing
  for (const CommitFile& file : before) {
    if (file.deleting || live.contains(file.generation)) continue;
    if (!after) {
      CAIRN_TRY_ASSIGN(const auto files, internal::ListCommits(state.paths));
      after.emplace();
      for (const CommitFile& one : files) {
        if (!one.deleting) after->insert(one.generation);
      }
    }
    // A manifest that existed before and after the index was opened belongs to a step that was
    // committed in between.
    if (!after->contains(file.generation)) continue;
    Error error{.code = ErrorCode::kDataLoss,
                .message =
                    "the index has lost a committed step, whose manifest still exists; open the "
                    "store for writing once to restore the step",
                .file = state.paths.manifest(file.generation, file.rank)};
    if (!state.options.tolerate_lost_steps) return Fail(std::move(error));
    // Only the open adds notes, so that they do not change while other threads read them.
    if (state.latest == nullptr) state.recovery_notes.push_back(std::move(error));
  }
  return {};
}

// Opens the index again and returns a snapshot of it.
Result<std::shared_ptr<const Snapshot>> ReaderSnapshot(StoreState& state)
    CAIRN_REQUIRES(state.mutex) {
  // List first: what is listed was committed before the index is opened, so the index must have it.
  CAIRN_TRY_ASSIGN(const std::vector<CommitFile> commits, internal::ListCommits(state.paths));
  CAIRN_TRY_ASSIGN(
      std::shared_ptr<Index> index,
      Index::Open(state.paths.root, /*writable=*/false, /*create=*/false, state.options.deadline));
  CAIRN_TRY_ASSIGN(std::vector<StepEntry> steps, internal::LoadSteps(*index));
  CAIRN_TRY(CheckNothingLost(state, commits, steps));
  state.index = index;
  state.latest = std::make_shared<const Snapshot>(
      std::make_unique<internal::SnapshotState>(state, std::move(index), steps));
  return state.latest;
}

}  // namespace

class Store::Impl {
 public:
  std::shared_ptr<StoreState> state = std::make_shared<StoreState>();

  static Result<std::unique_ptr<Impl>> Make(const std::string& directory, OpenMode mode,
                                            const StoreOptions& options);
  Result<void> OpenForReading();
  Result<void> OpenForWriting();
  Result<void> OpenIndexForWriting();
  Result<void> CheckCanBegin(uint64_t step, const BeginOptions& options) const;
};

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Store::~Store() { (void)Close(); }

const std::string& Store::directory() const { return impl_->state->paths.root; }
const StoreOptions& Store::options() const { return impl_->state->options; }
bool Store::writable() const { return impl_->state->writable; }
const std::string& Store::session() const { return impl_->state->session; }
const std::vector<Error>& Store::recovery_notes() const { return impl_->state->recovery_notes; }

Result<std::unique_ptr<Store::Impl>> Store::Impl::Make(const std::string& directory, OpenMode mode,
                                                       const StoreOptions& options) {
  IoOptions io;
  if (options.io) {
    io = *options.io;
  } else {
    CAIRN_TRY_ASSIGN(io, internal::IoOptionsFromEnvironment());
  }
  if (io.block_bytes < internal::kDirectAlignBytes || io.queue_depth == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "I/O options need blocks of at least 4096 bytes and a queue depth of at least 1");
  }
  auto impl = std::make_unique<Impl>();
  StoreState& state = *impl->state;
  state.paths.root = directory;
  state.options = options;
  state.options.io = io;
  state.writable = mode == OpenMode::kWrite;
  state.joined = mode == OpenMode::kJoinSession;
  state.pool = std::make_shared<BlockPool>(io.block_bytes, io.queue_depth);
  state.files = std::make_shared<internal::SegmentFiles>();
  return impl;
}

Result<std::unique_ptr<Store>> Store::Open(const std::string& directory, OpenMode mode,
                                           StoreOptions options) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<Impl> impl, Impl::Make(directory, mode, options));
  if (mode == OpenMode::kWrite) {
    CAIRN_TRY(impl->OpenForWriting());
  } else {
    CAIRN_TRY(impl->OpenForReading());
  }
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

Result<void> Store::Impl::OpenForReading() {
  if (state->joined) {
    if (state->options.session.empty() || state->options.session.find('/') != std::string::npos) {
      return Fail(ErrorCode::kInvalidArgument,
                  "joining a store requires the session of the rank that has it open for writing");
    }
    state->session = state->options.session;
  }
  CAIRN_TRY_ASSIGN(state->uuid, internal::ReadIdentity(state->paths));
  if (state->joined && !internal::Exists(state->paths.attempt(state->session))) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message =
                          "rank 0 has no such session open in this directory; all ranks must be "
                          "given the same directory, on a file system that they share",
                      .file = state->paths.root});
  }
  const MutexLock lock(state->mutex);
  CAIRN_TRY(ReaderSnapshot(*state));
  return {};
}

Result<void> Store::Impl::OpenForWriting() {
  CAIRN_TRY(internal::PrepareDirectory(state->paths));
  CAIRN_TRY_ASSIGN(state->lock, internal::LockFile::Acquire(state->paths.lock()));
  if (!internal::Exists(state->paths.identity())) {
    CAIRN_TRY(internal::CreateStore(state->paths, state->options.deadline));
  }
  CAIRN_TRY_ASSIGN(state->uuid, internal::ReadIdentity(state->paths));
  CAIRN_TRY(OpenIndexForWriting());
  const MutexLock write_lock(state->write_mutex);
  return internal::Recover(*state);
}

Result<void> Store::Impl::OpenIndexForWriting() {
  CAIRN_TRY_ASSIGN(state->index, Index::Open(state->paths.root, /*writable=*/true, /*create=*/false,
                                             state->options.deadline));
  uint64_t session = 0;
  if (::getrandom(&session, sizeof(session), 0) != sizeof(session)) {
    return Fail(SystemError(errno, "cannot generate a session id"));
  }
  state->session = fmt::format("{:016x}", session);
  state->live = std::make_shared<internal::LiveGenerations>();
  return {};
}

bool Store::IndexIsWhole(const std::string& directory, const StoreOptions& options) {
  return internal::IndexIsWhole(internal::StorePaths{.root = directory}, options.deadline);
}

Result<Store::RebuildReport> Store::RebuildIndex(const std::string& directory,
                                                 StoreOptions options) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<Impl> impl,
                   Impl::Make(directory, OpenMode::kWrite, options));
  StoreState& state = *impl->state;
  CAIRN_TRY_ASSIGN(state.uuid, internal::ReadIdentity(state.paths));
  CAIRN_TRY_ASSIGN(state.lock, internal::LockFile::Acquire(state.paths.lock()));
  std::string old_index;
  for (int n = 1; old_index.empty() || internal::Exists(old_index); ++n) {
    old_index = fmt::format("{}.damaged-{}", state.paths.index(), n);
  }
  if (internal::Exists(state.paths.index())) {
    CAIRN_TRY(internal::Rename(state.paths.index(), old_index, "rebuild.rename"));
  }
  CAIRN_TRY(internal::CreateIndex(state.paths, options.deadline));
  CAIRN_TRY(impl->OpenIndexForWriting());
  const MutexLock write_lock(state.write_mutex);
  CAIRN_TRY(internal::UndoAllDeletes(state));
  CAIRN_TRY(internal::Recover(state, /*sweep=*/false));
  CAIRN_TRY(state.index->Close());
  const MutexLock lock(state.mutex);
  return RebuildReport{
      .steps = state.steps.size(), .lost = state.lost_steps, .old_index = old_index};
}

Result<std::shared_ptr<const Snapshot>> Store::Latest() const {
  StoreState& state = *impl_->state;
  const MutexLock lock(state.mutex);
  if (state.closed) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "the store is closed",
                      .file = state.paths.root});
  }
  if (state.writable) {
    if (state.latest == nullptr) {
      state.latest = std::make_shared<const Snapshot>(
          std::make_unique<internal::SnapshotState>(state, state.index, state.steps));
    }
    return state.latest;
  }
  if (Index::Signature(state.paths.root) == state.index->signature()) return state.latest;
  return ReaderSnapshot(state);
}

std::string Store::NextAttempt(uint64_t step) {
  StoreState& state = *impl_->state;
  const MutexLock lock(state.mutex);
  return fmt::format("{}-{}-{}", state.session, step, state.attempts_at[step]++);
}

std::string Store::uuid() const {
  std::string text;
  for (const std::byte byte : impl_->state->uuid) {
    text += fmt::format("{:02x}", std::to_integer<int>(byte));
  }
  return text;
}

Result<std::string> Store::OpenSession() {
  const StoreState& state = *impl_->state;
  CAIRN_CHECK(state.writable);
  CAIRN_TRY(internal::MakeDirectory(state.paths.attempt(state.session)));
  return state.session;
}

Result<void> Store::Impl::CheckCanBegin(uint64_t step, const BeginOptions& options) const {
  const auto fail = [&](ErrorCode code, const char* message) {
    return Fail(Error{.code = code, .message = message, .file = state->paths.root, .step = step});
  };
  if (!state->writable && !state->joined) {
    return fail(ErrorCode::kFailedPrecondition,
                "the store is open for reading only; open it for writing to save");
  }
  if (state->joined != (options.rank > 0) || options.rank >= options.world_size) {
    return fail(ErrorCode::kInvalidArgument,
                "rank 0 must open the store for writing, and the other ranks must join it");
  }
  CAIRN_TRY(internal::CheckOutcomeKnown(*state));
  const MutexLock lock(state->mutex);
  if (state->closed) return fail(ErrorCode::kFailedPrecondition, "the store is closed");
  const bool exists = std::ranges::any_of(
      state->steps, [step](const StepEntry& entry) { return entry.info.step == step; });
  if (exists && !options.overwrite) {
    return fail(ErrorCode::kConflict,
                "the step already exists; save with overwrite, or under another number");
  }
  return {};
}

Result<std::unique_ptr<StepWriter>> Store::Begin(uint64_t step, const BeginOptions& options) {
  const std::shared_ptr<StoreState>& state = impl_->state;
  CAIRN_TRY(impl_->CheckCanBegin(step, options));
  if (state->step_writer_alive.exchange(true)) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "another save of this store is still running; wait for it",
                      .step = step});
  }
  const std::string attempt = options.attempt.empty() ? NextAttempt(step) : options.attempt;
  auto begun = std::make_unique<internal::StepAttempt>(state, step, options, attempt);
  CAIRN_TRY(begun->Start());
  return std::make_unique<StepWriter>(std::move(begun));
}

Result<void> Store::FailAttempt(const std::string& attempt, uint32_t rank, const Error& error) {
  StoreState& state = *impl_->state;
  bool kept = state.outcome_unknown;
  if (rank == 0) {
    const MutexLock lock(state.mutex);
    kept = kept || state.committed_attempt == attempt;
    internal::RecordAttempt(attempt, state.finished_attempts);
  }
  return internal::PublishFailure(state.paths, attempt, rank, error, kept);
}

Result<Store::DeleteReport> Store::Delete(std::span<const uint64_t> steps, bool dry_run) {
  StoreState& state = *impl_->state;
  if (!state.writable) {
    return Fail(
        Error{.code = ErrorCode::kFailedPrecondition,
              .message = "the store is open for reading only; open it for writing to delete",
              .file = state.paths.root});
  }
  const MutexLock write_lock(state.write_mutex);
  CAIRN_TRY_ASSIGN(const auto snapshot, Latest());
  CAIRN_TRY(internal::CheckOutcomeKnown(state));
  std::vector<StepEntry> removed;
  for (const uint64_t step : std::set<uint64_t>(steps.begin(), steps.end())) {
    CAIRN_TRY(snapshot->FindStep(step));
    const MutexLock lock(state.mutex);
    std::ranges::move(internal::FindEntries(state, step), std::back_inserter(removed));
  }
  CAIRN_TRY_ASSIGN(const internal::Removal removal,
                   internal::PlanRemoval(state, std::move(removed), {}));
  DeleteReport report{.steps = removal.steps.size(), .segments = removal.dead_segments.size()};
  for (const SegmentInfo& segment : removal.dead_segments) report.freed_bytes += segment.file_bytes;
  if (dry_run || removal.steps.empty()) return report;

  internal::IndexBatch batch;
  internal::AddToBatch(state, removal, nullptr, batch);
  CAIRN_TRY(internal::MarkRemoval(state, removal));
  const Result<void> committed = internal::CommitBatch(state, batch, [&state, &removal] {
    return !internal::HasGeneration(state, removal.steps.front().info.generation);
  });
  if (!committed) {
    if (!state.outcome_unknown) internal::UndoRemoval(state, removal);
    return Fail(committed.error());
  }
  report.freed_bytes = internal::FinishRemoval(state, removal);
  CAIRN_TRY(internal::RefreshSteps(state));
  return report;
}

Result<void> Store::Close() {
  StoreState& state = *impl_->state;
  if (state.step_writer_alive) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "a save is still running; wait for it before closing",
                      .file = state.paths.root});
  }
  const MutexLock write_lock(state.write_mutex);
  const MutexLock lock(state.mutex);
  if (state.closed) return {};
  state.closed = true;
  state.latest = nullptr;
  Result<void> result = {};
  // A rank that still waits for the outcome of one of these finds it in the index.
  for (const std::string& attempt : state.finished_attempts) {
    internal::ForgetAttempt(state.paths, attempt);
  }
  if (state.writable && !state.session.empty()) {
    (void)internal::RemoveTree(state.paths.attempt(state.session));
  }
  if (state.writable && state.index != nullptr) result = state.index->Close();
  state.index = nullptr;
  state.lock = nullptr;
  return result;
}

}  // namespace cairn::kv
