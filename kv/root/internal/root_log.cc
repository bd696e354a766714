// The commit of the next root, and the removal of old ones.

#include "kv/root/internal/root_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

// No store comes so far, and no writer that begins below takes all numbers and epochs after these.
constexpr uint64_t kLastNumber = uint64_t{1} << 62;
constexpr uint32_t kLastEpoch = uint32_t{1} << 31;

// A put without an answer is repeated, if the root is absent, with another commit id: a put that is
// performed late, when the number is free again, is then not taken for one that was confirmed.
constexpr int kPuts = 3;

CommitOutcome Unknown(const Root& next, const Error& cause) {
  Error error = cause;
  error.message =
      fmt::format("it is unknown whether root {} was committed: {}", next.number, cause.message);
  return {.state = CommitOutcome::State::kUnknown, .error = std::move(error), .other = {}};
}

Error TakenOverOrReplaced(const Storage& storage) {
  return Error{.code = ErrorCode::kConflict,
               .message =
                   "another writer has taken over this store, or it was replaced by another "
                   "one",
               .file = storage.address()};
}

CommitOutcome NotCommitted(Error error, std::optional<Root> other = std::nullopt) {
  return {.state = CommitOutcome::State::kNotCommitted,
          .error = std::move(error),
          .other = std::move(other)};
}

/// Returns whether the root that `next` must follow is there. The first root has no predecessor.
Result<bool> HasPredecessor(Storage& storage, const Root& next) {
  if (next.number == 1) return FirstRootRemains(storage, next.store_uuid);
  CAIRN_TRY_ASSIGN(const Presence before, LookBefore(storage, next));
  return MayBeSame(before);
}

/// The root that `next` must follow does not exist any more. Removes `next` if it exists. One of
/// several puts may have been performed earlier.
CommitOutcome LeftBehind(Storage& storage, const Root& next, size_t put_count) {
  const bool was_stray =
      WithdrawRoot(storage, next, [&] { return HasPredecessor(storage, next); }) && put_count == 1;
  auto newest = FindNewest(storage);
  if (newest && *newest && (*newest)->store_uuid != next.store_uuid) {
    // A root that was put among the roots of the other store is not in this store, wherever that
    // is.
    return was_stray ? NotCommitted(Replaced(storage)) : Unknown(next, Replaced(storage));
  }
  if (!newest || !*newest || (*newest)->number <= next.number) {
    return Unknown(next, TakenOverOrReplaced(storage));
  }
  // It may have been committed before others went on. Only a new open finds out.
  CommitOutcome outcome = Unknown(next, TakenOver(storage, **newest));
  outcome.error.message = fmt::format(
      "{} has taken over this store, and it is unknown whether root {} was committed before",
      Describe((*newest)->writer), next.number);
  outcome.other = *std::move(newest);
  return outcome;
}

/// Another writer's root has the number of `next`. Returns nothing if that does not exist any more:
/// its writer has put it into this store by mistake, and the number is free.
std::optional<CommitOutcome> Refused(Storage& storage, const Root& next, Root other) {
  const bool is_of_store = other.store_uuid == next.store_uuid;
  // A root without a predecessor is that of a rebuild, or root 1.
  const bool is_alternative =
      is_of_store && (!other.predecessor || other.predecessor == next.predecessor);
  if (next.number > 1) {
    const auto follows = HasPredecessor(storage, next);
    if (!follows) return Unknown(next, follows.error());
    // The put may have been performed before the store was replaced.
    if (!*follows) {
      return Unknown(next, is_of_store ? TakenOverOrReplaced(storage) : Replaced(storage));
    }
    // As in Confirm, the root with the number is looked at last.
    const auto remains = IsStillThere(storage, other);
    if (!remains) return Unknown(next, remains.error());
    if (!*remains) return std::nullopt;
    if (!is_alternative) {
      // A put whose answer is unknown may still be performed, if the stray root is removed.
      return Unknown(
          next, Error{.code = ErrorCode::kFailedPrecondition,
                      .message = fmt::format("{} has put a root of another store here; when that "
                                             "process has ended, remove this object",
                                             Describe(other.writer)),
                      .file = ObjectPath(storage.address(), RootName(next.number))});
    }
  }
  if (!is_of_store) return Unknown(next, Replaced(storage));
  Error error = TakenOver(storage, other);
  return NotCommitted(std::move(error), std::move(other));
}

/// Returns whether a commit writes the hint of the root before, because another request would take
/// long.
bool HintIsLate(const Storage& storage) { return storage.transfer_sizes().small_requests > 1; }

/// Sets `follows` to the result of HasPredecessor, checks that root `next`, which was put, is
/// stored, and writes a late hint; at once where each request takes long.
Result<void> CheckPut(Storage& storage, const Root& next, uint64_t size_bytes,
                      std::optional<Result<bool>>& follows) {
  const auto find_predecessor = [&]() -> Result<void> {
    follows = HasPredecessor(storage, next);
    return {};
  };
  const auto check = [&] { return CheckStored(storage, RootName(next.number), size_bytes); };
  const auto write_hint = [&]() -> Result<void> {
    if (HintIsLate(storage) && next.number > 1) {
      WriteHint(storage, next.store_uuid, next.number - 1);
    }
    return {};
  };
  return RunRequests(storage, {find_predecessor, check, write_hint});
}

/// Root `next` exists. Checks that it follows the root that its writer knows. `checked` is the
/// result of CheckPut, if it is known.
///
/// Root `next` is looked at last: if the store was replaced by another one, in which it was put,
/// and then came back, the root before it exists, and `next` does not.
CommitOutcome Confirm(Storage& storage, const Root& next, size_t put_count,
                      const std::optional<Result<bool>>& checked = std::nullopt) {
  const bool is_checked = checked && checked->has_value();
  Result<bool> follows = checked ? *checked : HasPredecessor(storage, next);
  for (int attempt = 0; !follows && attempt + 1 < kPuts; ++attempt) {
    std::this_thread::sleep_for(PauseAfter(attempt));
    follows = HasPredecessor(storage, next);
  }
  if (!follows) return Unknown(next, follows.error());
  if (!*follows) return LeftBehind(storage, next, put_count);
  if (!is_checked) {
    const auto is_there = IsStillThere(storage, next);
    if (!is_there) return Unknown(next, is_there.error());
    if (!*is_there) return Unknown(next, Replaced(storage));
  }
  // Without a CheckPut, no hint was written, and this one is not late.
  if (!HintIsLate(storage) || !is_checked) WriteHint(storage, next.store_uuid, next.number);
  return {};
}

}  // namespace

void WriteLateHint(Storage& storage, const Root& root) {
  if (HintIsLate(storage)) RaiseHint(storage, root.store_uuid, root.number);
}

Error TakenOver(const Storage& storage, const Root& other) {
  return Error{.code = ErrorCode::kConflict,
               .message = fmt::format("{} has taken over this store; nothing was committed",
                                      Describe(other.writer)),
               .file = ObjectPath(storage.address(), RootName(other.number))};
}

bool WithdrawRoot(Storage& storage, const Root& root,
                  const std::function<Result<bool>()>& belongs) {
  if (!IsStillThere(storage, root).value_or(false) || belongs().value_or(true)) return false;
  // Best effort: a root that does not follow the one before it is ignored.
  (void)storage.Remove(RootName(root.number));
  return true;
}

Result<bool> IsStillThere(Storage& storage, const Root& root) {
  CAIRN_TRY_ASSIGN(const Presence present, LookAgain(storage, root));
  return present == Presence::kSame;
}

Result<void> CheckCanFollow(const Storage& storage, std::string_view name, uint64_t number,
                            uint32_t epoch) {
  if (number < kLastNumber && epoch < kLastEpoch) return {};
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .hint = Hint::kRebuild,
                    .message = fmt::format("no store reaches root {} and epoch {}: the object was "
                                           "forged or damaged; move it away",
                                           number, epoch),
                    .file = ObjectPath(storage.address(), name)});
}

Root Successor(const Root& last, std::chrono::nanoseconds max_lead) {
  Root next = last;
  ++next.number;
  next.predecessor = last.number > 0 ? std::optional(last.commit_id) : std::nullopt;
  next.created_unix_ns = NowUnixNs();
  for (RemovedObject& object : next.removed) {
    object.since_unix_ns =
        std::min<int64_t>(object.since_unix_ns, next.created_unix_ns + max_lead.count());
  }
  return next;
}

CommitOutcome CommitRoot(Storage& storage, Root& next) {
  CAIRN_CHECK(next.predecessor.has_value() == (next.number > 1));
  const std::string name = RootName(next.number);
  std::vector<Uuid> commit_ids;  // commit ids of all puts
  for (int attempt = 0;; ++attempt) {
    commit_ids.push_back(next.commit_id = NewUuid());
    const auto object = EncodeRoot(next);
    if (!object) return NotCommitted(object.error());
    std::optional<Result<bool>> follows;
    Result<void> put = storage.PutIfAbsent(name, *object);
    // No later commit would notice the loss of the newest root.
    if (put) put = CheckPut(storage, next, object->size(), follows);
    if (put) return Confirm(storage, next, commit_ids.size(), follows);
    // The put may have been performed, and even a conflict may be with ourselves: find out.
    auto found = ReadRoot(storage, next.number);
    if (!found && found.error().code == ErrorCode::kUnimplemented) {
      found = ReadRootIdentity(storage, next.number);
    }
    const bool exists = found && *found;
    if (exists && std::ranges::count(commit_ids, (*found)->commit_id) > 0) {
      next.commit_id = (*found)->commit_id;
      return Confirm(storage, next, commit_ids.size());
    }
    if (exists) {
      auto refused = Refused(storage, next, **std::move(found));
      if (refused) return *std::move(refused);
    } else if (found && put.error().code == ErrorCode::kConflict) {
      // If the root before is there, others did not continue: the root with this number was a stray
      // one, whose writer has removed it.
      const auto follows = HasPredecessor(storage, next);
      if (!follows) return Unknown(next, follows.error());
      if (!*follows) return LeftBehind(storage, next, commit_ids.size());
    }
    if (attempt + 1 < kPuts) {
      std::this_thread::sleep_for(PauseAfter(attempt));
      continue;
    }
    // In a directory, a call that has failed is not in flight any more.
    if (found && !exists && storage.local_files() != nullptr) {
      return NotCommitted(put.error());
    }
    return Unknown(next, found ? put.error() : found.error());
  }
}

Result<uint64_t> RemoveOldRoots(Storage& storage, uint64_t newest, uint64_t keep, uint64_t oldest) {
  CAIRN_CHECK(keep >= 2);
  if (newest <= keep) return 1;
  const uint64_t end = newest - keep + 1;
  if (oldest == 0) {
    CAIRN_TRY_ASSIGN(oldest, ProbeBackward(storage, end));
  }
  const uint64_t begin = std::min(oldest, end);
  const uint64_t stop = std::min(end, begin + kMaxRemovedRoots);
  for (uint64_t number = begin; number < stop; ++number) {
    CAIRN_TRY(storage.Remove(RootName(number)));
  }
  return stop;
}

}  // namespace cairn::kv::internal
