// Builds the next root from the newest one, commits it, and removes what it makes unreachable.

#include "kv/state/internal/root_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/internal/free_space.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/lease.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/process_id.h"
#include "kv/state/internal/store_identity.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {
namespace {

using Clock = std::chrono::steady_clock;

/// Objects that steps use.
struct Reached {
  std::set<ObjectId> tables;
  std::set<ObjectId> segments;

  Result<void> Add(StoreState& state, const StepEntry& entry) {
    for (const TableInfo& table : entry.tables) tables.insert(table.id);
    return ForEachUse(state, entry, [this](const ObjectId& id) { segments.insert(id); });
  }
  /// Removes what another step uses. Its usage is not read if no segments are left.
  Result<void> Remove(StoreState& state, const StepEntry& entry) {
    for (const TableInfo& table : entry.tables) tables.erase(table.id);
    if (segments.empty()) return {};
    return ForEachUse(state, entry, [this](const ObjectId& id) { segments.erase(id); });
  }

 private:
  /// As UsageOf, but copies nothing: a store may have 100,000 steps.
  template <typename Visit>
  static Result<void> ForEachUse(StoreState& state, const StepEntry& entry, const Visit& visit) {
    if (!entry.usage_in_tables) {
      for (const SegmentUse& use : entry.usage) visit(use.segment);
      return {};
    }
    CAIRN_TRY_ASSIGN(const auto usage, UsageOf(state, entry));
    for (const SegmentUse& use : usage) visit(use.segment);
    return {};
  }
};

/// Forgets an object and removes it. From here on no save may refer to it, even if the storage
/// reports a failure: the removal may still be performed later.
void RemoveObject(StoreState& state, const std::string& name) {
  if (const auto parsed = ParseObjectName(name)) {
    if (parsed->kind == ObjectKind::kSegment) {
      state.files->Forget(parsed->id.id);
      const MutexLock lock(state.mutex);
      state.replaced_segments.erase(parsed->id.id);
    }
    if (parsed->kind == ObjectKind::kTable) state.tables->Forget(parsed->id);
  }
  (void)state.storage->Remove(name);
}

/// Returns the time before which objects became unreachable whose grace period has passed.
int64_t GraceLimitNs(const StoreState& state, int64_t now_unix_ns) {
  return now_unix_ns - std::chrono::nanoseconds(state.options.grace).count();
}

/// Adds objects to the list. If they are in it already, as announced ones are, updates their times.
void AddRemoved(std::vector<RemovedObject> objects, Root& root) {
  std::set<std::string_view> names;
  for (const RemovedObject& object : objects) names.insert(object.name);
  std::erase_if(root.removed,
                [&](const RemovedObject& object) { return names.contains(object.name); });
  for (RemovedObject& object : objects) root.removed.push_back(std::move(object));
}

/// Moves the objects that have been unreachable since `limit_ns` out of `root`.
std::vector<RemovedObject> TakeExpired(Root& root, int64_t limit_ns) {
  std::vector<RemovedObject> expired;
  std::erase_if(root.removed, [&](const RemovedObject& object) {
    if (object.since_unix_ns > limit_ns) return false;
    expired.push_back(object);
    return true;
  });
  return expired;
}

/// Sets the lengths of the objects; of those that do not exist, 0.
void Measure(StoreState& state, std::span<RemovedObject> objects) {
  (void)ForEachRequest(*state.storage, objects.size(), [&](size_t i) -> Result<void> {
    objects[i].file_bytes = state.storage->Size(objects[i].name).value_or(0);
    return {};
  });
}

/// Removes the roots that are older than the kept ones.
void RemoveRoots(StoreState& state, uint64_t newest) {
  const auto remaining = RemoveOldRoots(*state.storage, newest, kKeptRoots, state.oldest_root);
  if (remaining) state.oldest_root = *remaining;
}

/// Removes objects until `deadline`, at once where each request takes long. Best effort: the next
/// open for writing finds what remains.
void RemoveObjects(StoreState& state, std::span<const RemovedObject> objects,
                   Clock::time_point deadline) {
  (void)ForEachRequest(*state.storage, objects.size(), [&](size_t i) -> Result<void> {
    if (Clock::now() >= deadline) {
      return Fail(ErrorCode::kUnavailable, "the storage takes too long to remove objects");
    }
    RemoveObject(state, objects[i].name);
    return {};
  });
}

/// Performs what follows a commit, at once where each request takes long. Best effort: what remains
/// is removed by later commits, or by the next open for writing.
void FinishCommit(StoreState& state, uint64_t newest, std::span<const RemovedObject> expired,
                  const std::function<void()>& committed) {
  const auto remove_expired = [&]() -> Result<void> {
    RemoveObjects(state, expired, Clock::now() + kLongestRemoval);
    return {};
  };
  const auto remove_roots = [&]() -> Result<void> {
    RemoveRoots(state, newest);
    return {};
  };
  const auto renew_lease = [&]() -> Result<void> {
    if (state.lease != nullptr) (void)state.lease->Renew();
    return {};
  };
  const auto report = [&]() -> Result<void> {
    if (committed) committed();
    return {};
  };
  (void)RunRequests(*state.storage, {remove_expired, remove_roots, renew_lease, report});
}

/// Records that this process can commit no more, if that is so.
void NoteFailure(StoreState& state, const CommitOutcome& outcome) {
  if (outcome.state == CommitOutcome::State::kUnknown) state.outcome_unknown = true;
  const MutexLock lock(state.mutex);
  if (outcome.error.code == ErrorCode::kConflict) state.fenced = outcome.error;
}

/// Returns the names of the segments that a compaction has replaced and that the step uses again.
Result<std::vector<std::string>> ReplacedSegmentsOf(StoreState& state, const StepEntry& entry) {
  std::vector<std::string> names;
  {
    const MutexLock lock(state.mutex);
    if (state.replaced_segments.empty()) return names;
  }
  CAIRN_TRY_ASSIGN(const auto usage, UsageOf(state, entry));
  const MutexLock lock(state.mutex);
  for (const SegmentUse& use : usage) {
    if (!state.replaced_segments.contains(use.segment.id)) continue;
    names.push_back(ObjectName(ObjectKind::kSegment, use.segment));
  }
  return names;
}

/// Returns the steps that the policy of the store does not keep any more once `added` exists. A
/// step whose use of segments cannot be read remains: the save is worth more than the space.
Result<std::vector<uint64_t>> StepsWithoutUse(StoreState& state, const StepInfo& added,
                                              const TagChanges* tag_changes) {
  const auto current = CurrentRoot(state);
  const RetentionPolicy& policy = current->root.retention;
  if (!policy.keeps_any()) return std::vector<uint64_t>();
  const auto entries = current->steps.All();
  if (!entries) return std::vector<uint64_t>();
  std::map<uint64_t, StepInfo> steps;
  for (const StepEntryPtr& entry : *entries) steps[entry->info.step] = entry->info;
  steps[added.step] = added;
  std::vector<StepInfo> infos;
  for (auto& [step, info] : steps) infos.push_back(std::move(info));
  Tags tags = current->root.tags;
  if (tag_changes != nullptr) {
    for (const auto& [name, step] : *tag_changes) {
      if (step) tags[name] = *step;
    }
  }
  // An edit of an old step, or an import, is not the latest one.
  const uint64_t latest = *LatestOf(infos);
  std::vector<uint64_t> removed = StepsToDelete(policy, infos, tags, latest, true);
  std::erase(removed, added.step);
  const auto kept_steps = [&] {
    const MutexLock lock(state.mutex);
    return state.kept_steps;
  }();
  std::erase_if(removed, [&](uint64_t step) { return kept_steps.contains(step); });
  std::erase_if(removed, [&](uint64_t step) {
    const auto entry = current->steps.Find(step);
    return !entry || *entry == nullptr || !UsageOf(state, **entry).has_value();
  });
  return removed;
}

/// Applies the changes, and removes the tags of steps that do not exist any more.
Result<void> ChangeTags(const TagChanges* changes, const StepList& steps, Tags& tags) {
  if (changes != nullptr) {
    for (const auto& [name, step] : *changes) {
      if (step) {
        tags[name] = *step;
      } else {
        tags.erase(name);
      }
    }
  }
  std::erase_if(tags, [&](const auto& tag) { return !steps.Contains(tag.second); });
  if (tags.size() <= kMaxTags) return {};
  return Fail(ErrorCode::kInvalidArgument, "the store would have too many tags; remove some");
}

}  // namespace

std::shared_ptr<const CommittedRoot> CurrentRoot(const StoreState& state) {
  const MutexLock lock(state.mutex);
  return state.root;
}

Result<void> CheckNotForked(const StoreState& state) {
  if (state.owner == ProcessId()) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message = "this process was forked from the one that has the store open; "
                               "open the store in this process",
                    .file = state.storage->address()});
}

Result<void> CheckWritable(const StoreState& state, std::string_view purpose) {
  if (state.writable) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .hint = Hint::kOpenForWriting,
                    .message = "the store is open for reading only; open it for writing to " +
                               std::string(purpose),
                    .file = state.storage->address()});
}

Result<void> CheckCanCommit(const StoreState& state) {
  CAIRN_TRY(CheckNotForked(state));
  if (state.outcome_unknown) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "it is unknown whether an earlier change of this store was "
                                 "committed; close the store and open it again",
                      .file = state.storage->address()});
  }
  const MutexLock lock(state.mutex);
  if (state.fenced) return Fail(*state.fenced);
  return {};
}

Error ExplainLoss(const StoreState& state, Error error) {
  if (error.code != ErrorCode::kDataLoss) return error;
  const auto uuid = ReadIdentity(*state.storage);
  if (uuid && *uuid != state.uuid) return Replaced(*state.storage);
  if (!uuid && uuid.error().code == ErrorCode::kNotFound) {
    return {.code = ErrorCode::kFailedPrecondition,
            .message = "the store was removed in the meantime",
            .file = state.storage->address()};
  }
  if (uuid) error.hint = Hint::kRebuild;
  return error;
}

Result<void> CheckStillWriter(StoreState& state) {
  const auto newer = FindNewer(*state.storage, CurrentRoot(state)->root);
  if (!newer) return Fail(ExplainLoss(state, newer.error()));
  // A newer root of this session comes from a change by another thread of this process.
  if (!*newer || (*newer)->writer.session == state.session) return {};
  Error error = TakenOver(*state.storage, **newer);
  const MutexLock lock(state.mutex);
  state.fenced = error;
  return Fail(std::move(error));
}

Result<std::unique_ptr<Turn>> Turn::Take(StoreState& state, std::atomic<bool>& flag,
                                         std::string_view purpose, const char* taken_message) {
  CAIRN_TRY(CheckWritable(state, purpose));
  CAIRN_TRY(CheckCanCommit(state));
  CAIRN_TRY(CheckStillWriter(state));
  if (!flag.exchange(true)) return std::unique_ptr<Turn>(new Turn(flag));
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message = taken_message,
                    .file = state.storage->address()});
}

Result<std::vector<SegmentUse>> UsageOf(StoreState& state, const StepEntry& entry) {
  if (!entry.usage_in_tables) return entry.usage;
  if (entry.tables.empty()) return Fail(ErrorCode::kDataLoss, "a step has no tables");
  CAIRN_TRY_ASSIGN(const TableStack stack, state.tables->OpenStack(entry.tables));
  return ReadUsage(stack);
}

Result<Unreachable> FindUnreachable(StoreState& state, std::span<const uint64_t> removed,
                                    const StepEntry* added, std::span<const StepEntry> rewritten) {
  const auto root = CurrentRoot(state);
  std::set<uint64_t> gone(removed.begin(), removed.end());
  if (added != nullptr) gone.insert(added->info.step);
  for (const StepEntry& entry : rewritten) gone.insert(entry.info.step);
  Reached lost;
  for (const uint64_t step : gone) {
    CAIRN_TRY_ASSIGN(const StepEntryPtr entry, root->steps.Find(step));
    if (entry != nullptr) CAIRN_TRY(lost.Add(state, *entry));
  }
  Unreachable unreachable;
  if (lost.tables.empty()) return unreachable;
  const auto entries = root->steps.All();
  if (!entries) return unreachable;  // the used objects are unknown, so nothing may be removed
  for (const StepEntryPtr& entry : *entries) {
    if (!gone.contains(entry->info.step) && !lost.Remove(state, *entry)) return unreachable;
  }
  if (added != nullptr) CAIRN_TRY(lost.Remove(state, *added));
  for (const StepEntry& entry : rewritten) CAIRN_TRY(lost.Remove(state, entry));
  const auto add = [&](ObjectKind kind, const ObjectId& id) {
    unreachable.objects.push_back({.name = ObjectName(kind, id), .since_unix_ns = NowUnixNs()});
  };
  for (const ObjectId& table : lost.tables) add(ObjectKind::kTable, table);
  for (const ObjectId& segment : lost.segments) add(ObjectKind::kSegment, segment);
  Measure(state, unreachable.objects);
  unreachable.segments = lost.segments.size();
  return unreachable;
}

namespace {

/// With `added`, which may be null and replaces a step of the same number. Sets its generation.
Result<void> CommitChangeOnce(StoreState& state, std::span<const uint64_t> removed,
                              StepEntry* added, Unreachable unreachable,
                              const CommitActions& actions) {
  CAIRN_TRY(CheckCanCommit(state));
  const auto current = CurrentRoot(state);
  Root next = Successor(current->root, kAnnouncedFor);
  if (actions.takes_epoch) ++next.epoch;
  StepList changed = current->steps.Remove(removed);
  if (added != nullptr) {
    added->info.generation = next.number;
    changed = changed.Add({added, 1});
  }
  if (!actions.rewritten.empty()) changed = changed.Add(actions.rewritten);
  const std::set<std::string_view> reached(actions.adopted.begin(), actions.adopted.end());
  std::erase_if(next.removed,
                [&](const RemovedObject& object) { return reached.contains(object.name); });
  CAIRN_TRY_ASSIGN(StepList::WithPages written, changed.WritePages(state.epoch));
  next.recent = written.steps.recent();
  next.pages = written.steps.pages();
  CAIRN_TRY(ChangeTags(actions.tags, written.steps, next.tags));
  if (actions.retention != nullptr) next.retention = *actions.retention;
  next.compress = actions.compress.value_or(next.compress);
  for (const PageRef& page : written.unreachable) {
    next.removed.push_back({.name = ObjectName(ObjectKind::kPage, page.id),
                            .since_unix_ns = next.created_unix_ns,
                            .file_bytes = page.file_bytes});
  }
  AddRemoved(std::move(unreachable.objects), next);
  std::vector<RemovedObject> announced(actions.announced.begin(), actions.announced.end());
  for (RemovedObject& object : announced) {
    object.since_unix_ns = next.created_unix_ns + std::chrono::nanoseconds(kAnnouncedFor).count();
  }
  AddRemoved(std::move(announced), next);
  // One reading of the clock decides all of this. Otherwise a clock that is set forward in the
  // meantime would expire what was just announced.
  const std::vector<RemovedObject> expired = TakeExpired(
      next, actions.removes_waiting ? current->root.created_unix_ns  // not what is announced
                                    : GraceLimitNs(state, next.created_unix_ns));

  // Allocated before: once the root is committed, the state has it.
  const auto committed =
      std::make_shared<CommittedRoot>(CommittedRoot{.root = {}, .steps = std::move(written.steps)});
  CommitOutcome outcome;
  Result<void> asked = CatchExhaustion("a commit", [&]() -> Result<void> {
    outcome = CommitRoot(*state.storage, next);
    return {};
  });
  // The root may have been put before memory ran out.
  if (!asked) {
    outcome = {.state = CommitOutcome::State::kUnknown, .error = std::move(asked).error()};
  }
  if (outcome.state != CommitOutcome::State::kCommitted) {
    NoteFailure(state, outcome);
    return Fail(std::move(outcome.error));
  }
  committed->root = std::move(next);
  {
    const MutexLock lock(state.mutex);
    state.root = committed;
    state.latest = nullptr;
  }
  CleanUp([&] { FinishCommit(state, current->root.number + 1, expired, actions.committed); });
  return {};
}

}  // namespace

Result<void> CommitChange(StoreState& state, std::span<const uint64_t> removed,
                          const Unreachable& unreachable, const CommitActions& actions) {
  CAIRN_CHECK(actions.adopted.empty());  // it may be due
  return WithSpace([&](uint64_t& seen) { return FreeSpaceForCommit(state, seen); },
                   [&] { return CommitChangeOnce(state, removed, nullptr, unreachable, actions); });
}

Result<void> CommitNewStep(StoreState& state, StepEntry& entry, const CommitActions& actions) {
  const TableInfo written = entry.tables.front();
  const auto commit = [&]() -> Result<void> {
    std::vector<uint64_t> removed;
    if (actions.applies_retention) {
      CAIRN_TRY_ASSIGN(removed, StepsWithoutUse(state, entry.info, actions.tags));
    }
    CAIRN_TRY_ASSIGN(Unreachable unreachable, FindUnreachable(state, removed, &entry));
    CAIRN_TRY_ASSIGN(std::vector<std::string> adopted, ReplacedSegmentsOf(state, entry));
    adopted.insert(adopted.end(), actions.adopted.begin(), actions.adopted.end());
    CommitActions all = actions;
    all.adopted = adopted;
    return CommitChangeOnce(state, removed, &entry, std::move(unreachable), all);
  };
  Result<void> committed = commit();
  if (committed) return {};
  if (!state.outcome_unknown) {
    (void)state.storage->Remove(ObjectName(ObjectKind::kTable, written.id));
  }
  return Fail(std::move(committed).error().WithStep(entry.info.step));
}

bool IsAnnounced(const RemovedObject& object, const Root& root) {
  return object.since_unix_ns > root.created_unix_ns;
}

FreedSpace SpaceAfter(StoreState& state, const Unreachable& unreachable) {
  const auto current = CurrentRoot(state);
  Root next = Successor(current->root, kAnnouncedFor);
  Measure(state, next.removed);
  AddRemoved(unreachable.objects, next);
  FreedSpace space;
  const int64_t limit_ns = GraceLimitNs(state, next.created_unix_ns);
  for (const RemovedObject& object : next.removed) {
    if (object.since_unix_ns <= limit_ns) {
      space.freed_bytes += object.file_bytes;
    } else if (!IsAnnounced(object, next)) {
      space.waiting_bytes += object.file_bytes;
    }
  }
  return space;
}

uint64_t WaitingBytes(StoreState& state) {
  const FreedSpace space = SpaceAfter(state, {});
  return space.freed_bytes + space.waiting_bytes;
}

void RemoveDue(StoreState& state, std::chrono::seconds limit) {
  const auto current = CurrentRoot(state);
  const int64_t limit_ns = GraceLimitNs(state, NowUnixNs());
  // If another writer has taken over the store, its steps may use announced objects.
  const auto is_due = [&](const RemovedObject& object) {
    return !IsAnnounced(object, current->root) && object.since_unix_ns <= limit_ns;
  };
  std::vector<RemovedObject> due;
  std::ranges::copy_if(current->root.removed, std::back_inserter(due), is_due);
  // Also if another writer has followed: a rebuild may have recovered steps that use them.
  if (due.empty() || !CheckCanCommit(state) || !CheckStillWriter(state)) return;
  if (!IsStillThere(*state.storage, current->root).value_or(false)) return;
  RemoveObjects(state, due, Clock::now() + limit);
  ++state.removal_count;
  // The next root does not name them. Until then, the list may name objects that do not exist.
  CommittedRoot rest = *current;
  std::erase_if(rest.root.removed, is_due);
  const MutexLock lock(state.mutex);
  state.root = std::make_shared<const CommittedRoot>(std::move(rest));
}

std::optional<std::string> FreeSpaceForSave(StoreState& state, uint64_t& seen) {
  const MutexLock write_lock(state.write_mutex);
  return FreeSpaceForCommit(state, seen);
}

std::optional<std::string> FreeSpaceForCommit(StoreState& state, uint64_t& seen) {
  if (state.outcome_unknown) return "";  // no commit can be repeated
  if (state.writable) {
    RemoveDue(state);
    const uint64_t count = state.removal_count;
    if (std::exchange(seen, count) != count) return std::nullopt;
  }
  const uint64_t bytes = WaitingBytes(state);
  if (bytes == 0) return "";
  const auto current = CurrentRoot(state);
  int64_t since_ns = 0;
  for (const RemovedObject& object : current->root.removed) {
    if (!IsAnnounced(object, current->root)) since_ns = std::max(since_ns, object.since_unix_ns);
  }
  const std::chrono::nanoseconds left(since_ns - GraceLimitNs(state, NowUnixNs()));
  return fmt::format(
      "; {} bytes of deleted steps wait for readers, until their grace period ends in {} s", bytes,
      std::max<int64_t>(0, std::chrono::ceil<std::chrono::seconds>(left).count()));
}

void Sweep(StoreState& state, std::chrono::seconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  RemoveDue(state, limit);
  const auto root = CurrentRoot(state);
  Reached reached;
  const auto entries = root->steps.All();
  if (!entries) return;  // the reached objects are unknown, so nothing may be removed
  for (const StepEntryPtr& entry : *entries) {
    if (Clock::now() >= deadline || !reached.Add(state, *entry)) return;
  }
  std::set<std::string> kept;
  for (const RemovedObject& object : root->root.removed) kept.insert(object.name);
  for (const PageRef& page : root->root.pages) kept.insert(ObjectName(ObjectKind::kPage, page.id));
  const auto is_garbage = [&](const std::string& name) {
    const auto parsed = ParseObjectName(name);
    if (!parsed || kept.contains(name)) return false;
    if (parsed->id.epoch >= state.epoch || parsed->id.epoch < root->root.kept_before_epoch) {
      return false;
    }
    switch (parsed->kind) {
      case ObjectKind::kSegment:
        return !reached.segments.contains(parsed->id);
      case ObjectKind::kTable:
        return !reached.tables.contains(parsed->id);
      case ObjectKind::kPage:
        return true;
    }
    return false;
  };
  // Dead or alive, writers of older epochs, and those who wanted this one, cannot commit.
  const auto is_of_former_writer = [&](std::string_view folder, const std::string& name) {
    const auto session = std::string_view(name).substr(folder.size());
    const auto epoch = EpochOfSession(session);
    if (folder == kPendingFolder) return IsPendingName(name) && (!epoch || *epoch < state.epoch);
    return IsSessionName(session) && epoch && *epoch <= state.epoch && session != state.session;
  };
  std::vector<RemovedObject> garbage;
  for (const std::string_view folder :
       {ObjectFolder(ObjectKind::kSegment), ObjectFolder(ObjectKind::kTable),
        ObjectFolder(ObjectKind::kPage), kPendingFolder, kLeaseFolder}) {
    if (Clock::now() >= deadline) return;
    const auto names = state.storage->List(folder);
    if (!names) continue;
    const bool has_sessions = folder == kPendingFolder || folder == kLeaseFolder;
    for (const std::string& name : *names) {
      if (has_sessions ? is_of_former_writer(folder, name) : is_garbage(name)) {
        garbage.push_back({.name = name});
      }
    }
  }
  // The order matters: if the store was replaced by another one, these may be its objects. If not,
  // they are objects of this store, whose names no other store has.
  if (!garbage.empty() && IsStillThere(*state.storage, root->root).value_or(false)) {
    RemoveObjects(state, garbage, deadline);
  }
  // By epochs: another writer may have taken over the store since, and be writing.
  if (Clock::now() < deadline) (void)state.storage->RemoveLeftovers(state.epoch);
}

}  // namespace cairn::kv::internal
