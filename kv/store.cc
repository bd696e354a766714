// Opens stores, and hands out snapshots and step writers.

#include "kv/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/step_attempt.h"
#include "kv/io/internal/file.h"
#include "kv/io/internal/io_environment.h"
#include "kv/maintain/internal/rebuild.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/open_store.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/cache/internal/cached_storage.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/open/open_storage.h"

namespace cairn::kv {

using internal::StoreState;

namespace {

/// Returns the result of a change; with ExplainAbsence, if it failed.
template <typename T>
Result<T> Explained(const StoreState& state, Result<T> result) {
  if (result) return result;
  return Fail(internal::ExplainAbsence(state, std::move(result).error()));
}

}  // namespace

Store::Store(std::shared_ptr<StoreState> state) : state_(std::move(state)) {}

Store::~Store() {
  CleanUp([&] { (void)Close(); });
}

const std::string& Store::directory() const { return state_->storage->address(); }
Storage& Store::storage() const { return *state_->storage; }
const StoreOptions& Store::options() const { return state_->options; }
bool Store::writable() const { return state_->writable; }
const std::string& Store::session() const { return state_->session; }

namespace {

/// Returns the options of the caller, with defaults from the environment and the storage.
Result<IoOptions> IoOptionsOf(const Storage& storage, const StoreOptions& options) {
  const TransferSizes sizes = storage.transfer_sizes();
  IoOptions io;
  if (options.io) {
    io = *options.io;
  } else {
    io.block_bytes = sizes.request_bytes;
    io.queue_depth = sizes.queue_depth;
    CAIRN_TRY_ASSIGN(io, internal::IoOptionsFromEnvironment(io));
  }
  if (io.block_bytes >= internal::kDirectAlignBytes && io.block_bytes <= internal::kMaxBlockBytes &&
      io.queue_depth > 0 && io.queue_depth <= internal::kMaxQueueDepth) {
    return io;
  }
  return Fail(
      Error{.code = ErrorCode::kInvalidArgument,
            .message = fmt::format("blocks of {} bytes and a queue depth of {}: I/O here "
                                   "needs blocks of {} to {} bytes and a depth of 1 to {}",
                                   io.block_bytes, io.queue_depth, internal::kDirectAlignBytes,
                                   internal::kMaxBlockBytes, internal::kMaxQueueDepth),
            .file = storage.address()});
}

/// kInvalidArgument: the grace period is negative, and objects would be removed that were only just
/// announced. A longer one than kLongestGrace counts as that: in nanoseconds it might overflow.
Result<std::chrono::milliseconds> GraceOf(const Storage& storage, const StoreOptions& options) {
  constexpr std::chrono::milliseconds kLongestGrace = std::chrono::hours(24 * 365 * 100);
  if (options.grace.count() >= 0) return std::min(options.grace, kLongestGrace);
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = fmt::format("a grace period of {} ms: it must not be negative",
                                           options.grace.count()),
                    .file = storage.address()});
}

/// kInvalidArgument: the attempt is not one that NextAttempt has named in this session. Its name is
/// a part of names of objects.
Result<void> CheckAttempt(const StoreState& state, std::string_view attempt) {
  const std::string& session = state.session;
  const auto is_counter = [](char c) { return c == '-' || (c >= '0' && c <= '9'); };
  if (!session.empty() && attempt.size() < internal::kMaxAttemptBytes &&
      attempt.size() > session.size() && attempt.starts_with(session) &&
      std::ranges::all_of(attempt.substr(session.size()), is_counter)) {
    return {};
  }
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = fmt::format("'{}' is not an attempt of the session '{}'; all ranks "
                                           "must get it from NextAttempt, or from rank 0",
                                           attempt, session),
                    .file = state.storage->address()});
}

Result<std::shared_ptr<StoreState>> MakeState(std::shared_ptr<Storage> storage, OpenMode mode,
                                              const StoreOptions& options) {
  auto made = std::make_shared<StoreState>();
  StoreState& state = *made;
  state.storage = std::move(storage);
  CAIRN_TRY_ASSIGN(const IoOptions io, IoOptionsOf(*state.storage, options));
  state.options = options;
  CAIRN_TRY_ASSIGN(state.options.grace, GraceOf(*state.storage, options));
  state.options.io = io;
  state.writable = mode == OpenMode::kWrite;
  state.joined = mode == OpenMode::kJoinSession;
  state.pool = std::make_shared<BlockPool>(io.block_bytes, io.queue_depth);
  state.read_pool = std::make_shared<BlockPool>(io.block_bytes, io.queue_depth);
  state.queues = std::make_shared<internal::FileQueues>(io.uring);
  state.files = std::make_shared<internal::SegmentFiles>();
  state.tables = std::make_shared<internal::OpenTables>(state.storage);
  return made;
}

Result<void> CheckOpen(StoreState& state) {
  const MutexLock lock(state.mutex);
  if (!state.closed) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message = "the store is closed; open it again",
                    .file = state.storage->address()});
}

/// Checks what every change requires, before it waits for others.
Result<void> CheckCanChange(StoreState& state, std::string_view purpose) {
  CAIRN_TRY(internal::CheckWritable(state, purpose));
  CAIRN_TRY(internal::CheckNotForked(state));
  return CheckOpen(state);
}

/// Returns a snapshot of the newest root that this process knows.
Result<std::shared_ptr<const Snapshot>> KnownLatest(StoreState& state) {
  CAIRN_TRY(CheckOpen(state));
  const MutexLock lock(state.mutex);
  if (state.latest == nullptr) {
    state.latest = std::make_shared<const Snapshot>(
        std::make_unique<internal::SnapshotState>(state, state.root));
  }
  return state.latest;
}

Result<void> CheckCanBegin(StoreState& state, uint64_t step, const BeginOptions& options) {
  if (!state.joined) {
    const Result<void> writable = internal::CheckWritable(state, "save");
    if (!writable) return Fail(Error(writable.error()).WithStep(step));
  }
  if (state.joined != (options.rank > 0) || options.rank >= options.world_size) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "rank 0 must open the store for writing, and the other ranks "
                                 "must join it",
                      .file = state.storage->address(),
                      .step = step});
  }
  if (!options.attempt.empty()) CAIRN_TRY(CheckAttempt(state, options.attempt));
  CAIRN_TRY(CheckAnnotations(options.metrics, options.note, options.tags));
  CAIRN_TRY(internal::CheckNotForked(state));
  CAIRN_TRY(CheckOpen(state));
  CAIRN_TRY(internal::CheckCanCommit(state));
  if (!state.joined) CAIRN_TRY(internal::CheckStillWriter(state));
  if (!options.overwrite && !state.joined && internal::CurrentRoot(state)->steps.Contains(step)) {
    return Fail(Error{.code = ErrorCode::kConflict,
                      .hint = Hint::kOverwrite,
                      .message = "the step already exists; overwrite it, or give another number",
                      .file = state.storage->address(),
                      .step = step});
  }
  return {};
}

/// Checks that this process can change the store, and performs `change` while no other change runs.
/// Explains its error.
template <typename Change>
auto PerformChange(StoreState& state, std::string_view purpose, const Change& change)
    -> decltype(change()) {
  CAIRN_TRY(CheckCanChange(state, purpose));
  const MutexLock write_lock(state.write_mutex);
  CAIRN_TRY(internal::CheckCanCommit(state));
  CAIRN_TRY(internal::CheckStillWriter(state));
  return Explained(state, change());
}

/// Commits a setting of the store, and no change of its steps.
Result<void> CommitSetting(StoreState& state, const internal::CommitActions& actions) {
  return PerformChange(state, "set a policy or compression",
                       [&] { return internal::CommitChange(state, {}, {}, actions); });
}

}  // namespace

Result<std::unique_ptr<Store>> Store::Open(const std::string& address, OpenMode mode,
                                           StoreOptions options) {
  CAIRN_TRY_ASSIGN(std::shared_ptr<Storage> storage, OpenStorage(address, options.s3));
  if (options.reader_cache) {
    CAIRN_TRY_ASSIGN(storage, internal::WithReaderCache(std::move(storage)));
  }
  return Open(std::move(storage), mode, std::move(options));
}

Result<std::unique_ptr<Store>> Store::Open(std::shared_ptr<Storage> storage, OpenMode mode,
                                           StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto state, MakeState(std::move(storage), mode, options));
  if (mode == OpenMode::kWrite) {
    CAIRN_TRY(internal::OpenForWriting(*state));
  } else {
    CAIRN_TRY(internal::OpenForReading(*state));
  }
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

Result<RebuildReport> Store::Rebuild(const std::string& address, StoreOptions options) {
  CAIRN_TRY_ASSIGN(std::shared_ptr<Storage> storage, OpenStorage(address, options.s3));
  return Rebuild(std::move(storage), std::move(options));
}

Result<RebuildReport> Store::Rebuild(std::shared_ptr<Storage> storage, StoreOptions options) {
  CAIRN_TRY_ASSIGN(const auto state, MakeState(std::move(storage), OpenMode::kWrite, options));
  return internal::Rebuild(*state);
}

Result<std::shared_ptr<const Snapshot>> Store::Latest() const {
  StoreState& state = *state_;
  CAIRN_TRY(CheckOpen(state));
  if (!state.writable) CAIRN_TRY(internal::RefreshRoot(state));
  return KnownLatest(state);
}

Result<std::shared_ptr<const Snapshot>> Store::SnapshotWith(const StepInfo& step) const {
  StoreState& state = *state_;
  if (state.storage->transfer_sizes().small_requests > 1) {
    // Usually the step was found in the newest known root a moment ago: ask no further.
    CAIRN_TRY_ASSIGN(auto known, KnownLatest(state));
    const auto of_known = known->FindStep(step.step);
    if (of_known && of_known->generation == step.generation) return known;
  }
  CAIRN_TRY_ASSIGN(auto latest, Latest());
  const auto found = latest->FindStep(step.step);
  if (found && found->generation == step.generation) return latest;
  if (!found && found.error().code != ErrorCode::kNotFound) return std::unexpected(found.error());
  CAIRN_TRY_ASSIGN(auto root, internal::ReadRootOf(state, step.generation));
  return std::make_shared<const Snapshot>(
      std::make_unique<internal::SnapshotState>(state, std::move(root)));
}

void Store::AwaitChange(std::chrono::milliseconds timeout) const {
  // It may return early, and a time after the clock's end would have passed already.
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  state_->storage->AwaitChange(internal::kRootFolder,
                               std::clamp(timeout, std::chrono::milliseconds(0), kLongest));
}

internal::StoreState& internal::StoreAccess::StateOf(const Store& store) { return *store.state_; }

std::string Store::NextAttempt(uint64_t step) {
  StoreState& state = *state_;
  const MutexLock lock(state.mutex);
  return fmt::format("{}-{}-{}", state.session, step, state.attempts_at[step]++);
}

std::string Store::uuid() const {
  // If the store cannot be read, the next call of Latest returns the error.
  if (state_->unread) (void)internal::RefreshRoot(*state_);
  return internal::UuidText(state_->uuid);
}

Result<std::string> Store::OpenSession() {
  StoreState& state = *state_;
  CAIRN_TRY(CheckCanChange(state, "let other ranks join it"));
  CAIRN_TRY(internal::CheckStillWriter(state));
  CAIRN_TRY(state.lease->PutIfLost());  // it marks the session in the storage
  return state.session;
}

void Store::ContinueFrom(const StepInfo& step) const {
  StepInfo loaded = internal::WithoutAnnotations(step);
  const MutexLock lock(state_->mutex);
  state_->continuation.step = std::move(loaded);
  ++state_->continuation.load_count;
}

Continuation Store::continuation() const {
  const MutexLock lock(state_->mutex);
  return state_->continuation;
}

namespace {

/// Returns the step from which the next one continues; nothing if there is none. kNotFound: the
/// step that was named does not exist.
Result<std::optional<StepInfo>> FindParent(StoreState& state, std::optional<uint64_t> named,
                                           std::optional<StepInfo> continued) {
  const auto root = internal::CurrentRoot(state);
  if (named) {
    CAIRN_TRY_ASSIGN(const auto entry, root->steps.Find(*named));
    if (entry != nullptr) return entry->info;
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "the step that is to be the parent does not exist",
                      .step = *named});
  }
  if (continued) return continued;
  CAIRN_TRY_ASSIGN(const auto newest, root->steps.Latest());
  return newest == nullptr ? std::nullopt : std::optional(newest->info);
}

}  // namespace

Result<std::unique_ptr<StepWriter>> Store::Begin(uint64_t step, const BeginOptions& options) {
  CAIRN_TRY(CheckCanBegin(*state_, step, options));
  Continuation from = options.continuation ? *options.continuation : continuation();
  if (!state_->joined) {  // only the commit of rank 0 uses it
    CAIRN_TRY_ASSIGN(from.step, FindParent(*state_, options.parent, std::move(from.step)));
  }
  if (state_->step_writer_alive.exchange(true)) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "another save of this store is still running; wait for it",
                      .step = step});
  }
  // In a multi-rank store, only rank 0 can remove objects, and the other ranks do not wait for it.
  if (options.world_size > 1 && state_->writable && state_->storage->local_files() != nullptr) {
    const MutexLock write_lock(state_->write_mutex);
    internal::RemoveDue(*state_, internal::kShortRemoval);
  }
  const std::string attempt = options.attempt.empty() ? NextAttempt(step) : options.attempt;
  return std::make_unique<StepWriter>(
      std::make_unique<internal::StepAttempt>(state_, step, options, attempt, std::move(from)));
}

Result<void> Store::FailAttempt(const std::string& attempt, uint32_t rank, const Error& error) {
  StoreState& state = *state_;
  CAIRN_TRY(internal::CheckNotForked(state));
  CAIRN_TRY(CheckAttempt(state, attempt));
  bool kept = state.outcome_unknown;
  if (rank == 0) {
    const MutexLock lock(state.mutex);
    kept = kept || state.committed_attempt == attempt;
    internal::RecordAttempt(attempt, state.finished_attempts);
  }
  Error named = error;
  const bool is_of_storage =
      error.code == ErrorCode::kResourceExhausted || error.code == ErrorCode::kUnavailable;
  if (rank == 0 && is_of_storage && !internal::FindFailure(*state.storage, attempt)) {
    named.message.insert(0, "rank 0: ");
  }
  return internal::PublishFailure(*state.storage, attempt, rank, named, kept);
}

Result<Store::DeleteReport> Store::Delete(std::span<const uint64_t> steps, bool dry_run) {
  StoreState& state = *state_;
  if (!dry_run) CAIRN_TRY(internal::CheckWritable(state, "delete"));
  CAIRN_TRY(internal::CheckNotForked(state));
  CAIRN_TRY(CheckOpen(state));
  const MutexLock write_lock(state.write_mutex);
  if (state.writable) {
    CAIRN_TRY(internal::CheckCanCommit(state));
    CAIRN_TRY(internal::CheckStillWriter(state));
  }
  CAIRN_TRY_ASSIGN(const auto snapshot, Latest());
  const std::set<uint64_t> unique(steps.begin(), steps.end());
  for (const uint64_t step : unique) CAIRN_TRY(snapshot->FindStep(step));
  if (unique.empty()) return DeleteReport{.waiting_bytes = internal::WaitingBytes(state)};
  const std::vector<uint64_t> removed(unique.begin(), unique.end());
  CAIRN_TRY_ASSIGN(const internal::Unreachable unreachable,
                   Explained(state, internal::FindUnreachable(state, removed, nullptr)));
  const internal::FreedSpace space = internal::SpaceAfter(state, unreachable);
  const DeleteReport report{.steps = removed.size(),
                            .segments = unreachable.segments,
                            .freed_bytes = space.freed_bytes,
                            .waiting_bytes = space.waiting_bytes};
  if (dry_run) return report;
  CAIRN_TRY(Explained(state, internal::CommitChange(state, removed, unreachable)));
  return report;
}

Result<uint64_t> Store::RemoveWaiting() {
  StoreState& state = *state_;
  return PerformChange(state, "remove what waits", [&]() -> Result<uint64_t> {
    if (internal::CurrentRoot(state)->root.removed.empty()) return 0;
    const uint64_t bytes = internal::WaitingBytes(state);
    CAIRN_TRY(internal::CommitChange(state, {}, {}, {.removes_waiting = true}));
    return bytes;
  });
}

Result<void> Store::ChangeTags(const TagChanges& changes) {
  StoreState& state = *state_;
  return PerformChange(state, "change tags", [&]() -> Result<void> {
    CAIRN_TRY(CheckTags(changes));
    CAIRN_TRY_ASSIGN(const auto snapshot, Latest());
    for (const auto& [name, step] : changes) {
      if (step) {
        CAIRN_TRY(snapshot->FindStep(*step));
      } else {
        CAIRN_TRY(snapshot->FindTag(name));
      }
    }
    if (changes.empty()) return {};
    return internal::CommitChange(state, {}, {}, {.tags = &changes});
  });
}

Result<void> Store::SetRetention(const RetentionPolicy& policy) {
  CAIRN_TRY(CheckRetention(policy));
  return CommitSetting(*state_, {.retention = &policy});
}

Result<void> Store::SetCompression(bool compress) {
  return CommitSetting(*state_, {.compress = compress});
}

void Store::KeepSteps(std::span<const uint64_t> steps) {
  const MutexLock lock(state_->mutex);
  state_->kept_steps = {steps.begin(), steps.end()};
}

Result<void> Store::Close() {
  StoreState& state = *state_;
  CAIRN_TRY(internal::CheckNotForked(state));
  if (state.step_writer_alive) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "a save is still running; wait for it before closing",
                      .file = state.storage->address()});
  }
  if (state.compacting) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "a compaction is still running; stop it, or wait for it",
                      .file = state.storage->address()});
  }
  const MutexLock write_lock(state.write_mutex);
  std::vector<std::string> attempts;
  bool is_fenced = false;
  {
    const MutexLock lock(state.mutex);
    state.closed = true;
    is_fenced = state.fenced.has_value();
    state.latest = nullptr;
    attempts.assign(state.finished_attempts.begin(), state.finished_attempts.end());
    state.finished_attempts.clear();
  }
  // A rank that still waits for the outcome of one of these finds it in the newest root, or reads
  // the error.
  for (const std::string& attempt : attempts) {
    internal::ForgetAttempt(*state.storage, attempt, /*keeps_failure=*/true);
  }
  if (state.lease != nullptr) {
    internal::RemoveDue(state, internal::kShortRemoval);
  }
  // The lease remains if it cannot be removed, so that a repeated close tries again.
  if (state.lease != nullptr) {
    const auto write_hint = [&]() -> Result<void> {
      if (!is_fenced) WriteLateHint(*state.storage, internal::CurrentRoot(state)->root);
      return {};
    };
    CAIRN_TRY(RunRequests(*state.storage, {[&] { return state.lease->Release(); }, write_hint}));
  }
  state.lease = nullptr;
  return {};
}

}  // namespace cairn::kv
