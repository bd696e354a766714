// Search for the newest root, and the commit of the next.

#include "kv/internal/root/root_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "kv/digest.h"
#include "kv/internal/root/framed_record.h"
#include "kv/internal/storage/concurrent_requests.h"
#include "kv/internal/storage/name_check.h"

namespace cairn::kv::internal {
namespace {

using std::chrono::milliseconds;

// A search starts again if the roots change, or the listing is late. Ten attempts take a second.
constexpr int kSearches = 10;
// A put without an answer is repeated with the same bytes, so a second root cannot result.
constexpr int kPuts = 3;

milliseconds PauseAfter(int attempt) { return milliseconds(2) * (1 << std::min(attempt, 8)); }

bool IsNotFound(const Error& error) { return error.code == ErrorCode::kNotFound; }

Result<std::optional<Root>> ReadRoot(Storage& storage, uint64_t number) {
  const std::string name = RootName(number);
  const auto object = storage.Read(name, kMaxFramedBytes);
  if (!object && IsNotFound(object.error())) return std::nullopt;
  if (!object) return std::unexpected(object.error());
  auto root = DecodeRoot(*object);
  const std::string path = ObjectPath(storage.address(), name);
  if (!root) return Fail(std::move(root).error().WithFile(path));
  if (root->number != number) {
    return Fail(Error{
        .code = ErrorCode::kDataLoss,
        .message = fmt::format("the root has the number {} instead of {}", root->number, number),
        .file = path});
  }
  return *std::move(root);
}

/// Returns 0 if there is no hint that can be used.
Result<uint64_t> ReadHint(Storage& storage) {
  const auto object = storage.Read(kHintName, 64);
  if (!object) {
    const ErrorCode code = object.error().code;
    if (code == ErrorCode::kNotFound || code == ErrorCode::kDataLoss) return 0;
    return std::unexpected(object.error());
  }
  const auto* text = reinterpret_cast<const char*>(object->data());
  uint64_t number = 0;
  const auto [end, failed] = std::from_chars(text, text + object->size(), number);
  const bool whole = failed == std::errc() && end == text + object->size();
  return whole && number < ~uint64_t{0} ? number : 0;
}

void WriteHint(Storage& storage, uint64_t number) {
  if (number % kHintInterval != 0) return;
  // Best effort: without a hint, or with an old one, a search takes longer and finds the same.
  const std::string text = std::to_string(number);
  (void)storage.PutVolatile(kHintName, std::as_bytes(std::span(text)));
}

Result<bool> RootExists(Storage& storage, uint64_t number) {
  return ObjectExists(storage, RootName(number));
}

/// What there is under the number of a root.
enum class Presence : uint8_t {
  kAbsent,
  kSame,
  kUnclear,  // a root that may be the same: it is damaged, or the commit id is not known
  kOther,
};

/// Damage of a root that nobody needs any more must not hide the newest one.
bool MayBeSame(Presence presence) {
  return presence == Presence::kSame || presence == Presence::kUnclear;
}

/// Compares root `number` with the one that has this commit id.
Result<Presence> LookAt(Storage& storage, uint64_t number, const std::optional<Uuid>& commit_id) {
  if (!commit_id) {
    CAIRN_TRY_ASSIGN(const bool exists, RootExists(storage, number));
    return exists ? Presence::kUnclear : Presence::kAbsent;
  }
  const auto object = storage.Read(RootName(number), kMaxFramedBytes);
  if (!object && IsNotFound(object.error())) return Presence::kAbsent;
  if (!object && object.error().code != ErrorCode::kDataLoss) {
    return std::unexpected(object.error());
  }
  const auto identity =
      object ? DecodeRootIdentity(*object) : Result<RootIdentity>(Fail(object.error()));
  if (!identity || identity->number != number) return Presence::kUnclear;
  return identity->commit_id == *commit_id ? Presence::kSame : Presence::kOther;
}

/// Returns what there is under the number of the predecessor of `root`, which is not root 1.
Result<Presence> LookBefore(Storage& storage, const Root& root) {
  return LookAt(storage, root.number - 1, root.predecessor);
}

bool Follows(const Root& next, const Root& root) {
  return next.store_uuid == root.store_uuid &&
         (!next.predecessor || *next.predecessor == root.commit_id);
}

/// Returns the last root of those that follow `number` without a gap; `number` if there are none.
Result<uint64_t> ProbeForward(Storage& storage, uint64_t number) {
  uint64_t exists = number;
  uint64_t absent = ~uint64_t{0};
  for (uint64_t distance = 1; distance < absent - exists; distance *= 2) {
    CAIRN_TRY_ASSIGN(const bool found, RootExists(storage, exists + distance));
    if (!found) absent = exists + distance;
    if (found) exists += distance;
  }
  while (absent - exists > 1) {
    const uint64_t middle = exists + (absent - exists) / 2;
    CAIRN_TRY_ASSIGN(const bool found, RootExists(storage, middle));
    (found ? exists : absent) = middle;
  }
  return exists;
}

/// Returns the newest root. Returns nothing if `start` and the root after it do not exist, if roots
/// were put or removed during the search, or if the newest does not follow the root before it.
Result<std::optional<Root>> SearchFrom(Storage& storage, uint64_t start) {
  CAIRN_TRY_ASSIGN(const uint64_t last, ProbeForward(storage, start));
  CAIRN_TRY_ASSIGN(const bool has_gap, RootExists(storage, last + 2));
  if (has_gap) return std::nullopt;
  // The order matters: the successor was absent before this read.
  CAIRN_TRY_ASSIGN(std::optional<Root> root, ReadRoot(storage, last));
  if (!root || last == 1) return root;
  CAIRN_TRY_ASSIGN(const Presence before, LookBefore(storage, *root));
  return MayBeSame(before) ? std::move(root) : std::nullopt;
}

/// As SearchFrom, but makes the requests for `start` and the root after it at once.
Result<std::optional<Root>> SearchAt(Storage& storage, uint64_t start) {
  std::optional<Root> root;
  bool has_next = false;
  CAIRN_TRY(RunRequests(storage, {[&]() -> Result<void> {
                                    CAIRN_TRY_ASSIGN(root, ReadRoot(storage, start));
                                    return {};
                                  },
                                  [&]() -> Result<void> {
                                    CAIRN_TRY_ASSIGN(has_next, RootExists(storage, start + 1));
                                    return {};
                                  }}));
  if (has_next || !root) return SearchFrom(storage, start);
  // The order matters: as long as an older root exists, neither of both has been removed.
  CAIRN_TRY_ASSIGN(const Presence before,
                   start > 1 ? LookBefore(storage, *root) : LookAt(storage, 1, root->commit_id));
  return MayBeSame(before) ? std::move(root) : std::nullopt;
}

/// Returns the number of the newest root that a current listing names; nothing if the listing lacks
/// the root before it, and so cannot be trusted. The root after it was absent at the same time.
Result<std::optional<uint64_t>> NewestListed(Storage& storage) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  if (numbers.empty()) return std::nullopt;
  const uint64_t last = numbers.back();
  const bool has_predecessor = numbers.size() > 1 && numbers[numbers.size() - 2] == last - 1;
  if (last > 1 && !has_predecessor) return std::nullopt;
  return last;
}

/// Makes the first requests of FindNewest at once. Returns nothing if that does not suffice.
Result<std::optional<Root>> FindNewestAtOnce(Storage& storage, uint64_t& hint) {
  std::vector<uint64_t> numbers;
  CAIRN_TRY(RunRequests(storage, {[&]() -> Result<void> {
                                    CAIRN_TRY_ASSIGN(hint, ReadHint(storage));
                                    return {};
                                  },
                                  [&]() -> Result<void> {
                                    CAIRN_TRY_ASSIGN(numbers, ListRoots(storage));
                                    return {};
                                  }}));
  const uint64_t start = std::max(hint, numbers.empty() ? 1 : numbers.back());
  return SearchAt(storage, start);
}

/// Searches from the newest root that the storage lists.
Result<std::optional<Root>> SearchFromListing(Storage& storage) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  return SearchFrom(storage, numbers.empty() ? 1 : numbers.back());
}

/// Returns whether no root that was put after the first one has been removed. If others have
/// continued after it, it was removed only if there have been more than kKeptRoots.
Result<bool> FirstRootRemains(Storage& storage) {
  CAIRN_TRY_ASSIGN(const uint64_t hint, ReadHint(storage));
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  const uint64_t last = std::max(hint, numbers.empty() ? 0 : numbers.back());
  if (last <= 1) return true;
  CAIRN_TRY_ASSIGN(const uint64_t newest, ProbeForward(storage, last));
  return newest <= kKeptRoots;
}

/// Searches below the stray roots that a listing names: a writer has put them whose store was
/// replaced by this one, and has ended before it could remove them. `store_uuid` is null if it is
/// not known. Returns nothing if there are none, or if roots were put or removed during the search.
Result<std::optional<Root>> SearchBelowStrays(Storage& storage, const Uuid* store_uuid) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  bool has_strays = false;
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    CAIRN_TRY_ASSIGN(std::optional<Root> root, ReadRoot(storage, *number));
    if (!root) continue;
    if (store_uuid != nullptr && root->store_uuid != *store_uuid) {
      has_strays = true;
      continue;
    }
    if (*number > 1) {
      CAIRN_TRY_ASSIGN(const Presence before, LookBefore(storage, *root));
      if (before == Presence::kOther) {
        has_strays = true;
        continue;
      }
      if (before == Presence::kAbsent) return std::nullopt;
    }
    if (!has_strays) return std::nullopt;
    // The order matters: as long as the predecessor is there, no root after it was removed. So the
    // number after this root is free, or nobody but the writer of a stray root has ever had it.
    CAIRN_TRY_ASSIGN(const std::optional<Root> next, ReadRoot(storage, *number + 1));
    if (next && Follows(*next, *root)) return std::nullopt;
    if (*number == 1) {
      CAIRN_TRY_ASSIGN(const bool remains, FirstRootRemains(storage));
      return remains ? std::move(root) : std::nullopt;
    }
    CAIRN_TRY_ASSIGN(const Presence before, LookBefore(storage, *root));
    return MayBeSame(before) ? std::move(root) : std::nullopt;
  }
  return std::nullopt;
}

/// Returns whether the root exists, and has neither a predecessor nor a successor.
Result<bool> IsAlone(Storage& storage, uint64_t number) {
  CAIRN_TRY_ASSIGN(const bool exists, RootExists(storage, number));
  CAIRN_TRY_ASSIGN(const bool has_predecessor, RootExists(storage, number - 1));
  CAIRN_TRY_ASSIGN(const bool has_successor, RootExists(storage, number + 1));
  return exists && !has_predecessor && !has_successor;
}

Result<std::optional<Root>> GiveUp(Storage& storage, uint64_t hint) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  if (!numbers.empty()) {
    const uint64_t last = numbers.back();
    // The root of a writer that was paused for more than kKeptRoots commits is older than the hint.
    CAIRN_TRY_ASSIGN(const bool is_alone, IsAlone(storage, last));
    if (is_alone && last >= hint) {
      return Fail(Error{
          .code = ErrorCode::kDataLoss,
          .message = fmt::format("root {} has no predecessor: root {} is missing", last, last - 1),
          .file = ObjectPath(storage.address(), RootName(last - 1))});
    }
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = fmt::format(
                          "cannot find the newest root: the listing names root {}, but it does not "
                          "exist or has no predecessor; try again, and if this error remains, run "
                          "kv-admin rebuild",
                          last),
                      .file = storage.address()});
  }
  if (hint == 0) return std::nullopt;
  return Fail(
      Error{.code = ErrorCode::kDataLoss,
            .message = fmt::format("the store has had root {}, but its roots are missing", hint),
            .file = storage.address()});
}

CommitOutcome Unknown(const Root& next, const Error& cause) {
  Error error = cause;
  error.message =
      fmt::format("it is unknown whether root {} was committed: {}", next.number, cause.message);
  return {.state = CommitOutcome::State::kUnknown, .error = std::move(error), .other = {}};
}

CommitOutcome NotCommitted(Error error, std::optional<Root> other = std::nullopt) {
  return {.state = CommitOutcome::State::kNotCommitted,
          .error = std::move(error),
          .other = std::move(other)};
}

/// The root that `next` must follow is not there any more. Removes `next` if it is there. One of
/// several puts may have been performed earlier.
CommitOutcome LeftBehind(Storage& storage, const Root& next, size_t put_count) {
  const bool was_stray = WithdrawRoot(storage, next) && put_count == 1;
  auto newest = FindNewest(storage);
  if (newest && *newest && (*newest)->store_uuid != next.store_uuid) {
    // A root that was put among those of the other store is not in the own one, wherever that is.
    return was_stray ? NotCommitted(Replaced(storage)) : Unknown(next, Replaced(storage));
  }
  if (!newest || !*newest || (*newest)->number <= next.number) {
    return Unknown(next, Error{.code = ErrorCode::kConflict,
                               .message = "another writer has taken over this store, or it was "
                                          "replaced by another one",
                               .file = storage.address()});
  }
  // It may have been committed before others went on. Only a new open finds out.
  CommitOutcome outcome = Unknown(next, TakenOver(storage, **newest));
  outcome.error.message = fmt::format(
      "{} has taken over this store, and it is unknown whether root {} was committed before",
      Describe((*newest)->writer), next.number);
  outcome.other = *std::move(newest);
  return outcome;
}

/// Returns whether the root that `next` must follow is there. The first root has no predecessor.
Result<bool> HasPredecessor(Storage& storage, const Root& next) {
  if (next.number == 1) return FirstRootRemains(storage);
  CAIRN_TRY_ASSIGN(const Presence before, LookBefore(storage, next));
  return MayBeSame(before);
}

/// Another writer's root has the number of `next`.
CommitOutcome Refused(Storage& storage, const Root& next, Root other) {
  const bool is_of_store = other.store_uuid == next.store_uuid;
  const bool is_alternative = is_of_store && (!other.predecessor || !next.predecessor ||
                                              *other.predecessor == *next.predecessor);
  if (!is_alternative && next.number > 1 && HasPredecessor(storage, next).value_or(false)) {
    // A put whose answer is unknown may still be performed, if the stray root is removed.
    return Unknown(
        next, Error{.code = ErrorCode::kFailedPrecondition,
                    .message = fmt::format("{} has put a root of another store here; when that "
                                           "process has ended, remove this object",
                                           Describe(other.writer)),
                    .file = ObjectPath(storage.address(), RootName(next.number))});
  }
  // The put may have been performed before the store was replaced.
  if (!is_of_store) return Unknown(next, Replaced(storage));
  Error error = TakenOver(storage, other);
  return NotCommitted(std::move(error), std::move(other));
}

/// Checks that root `next`, which was put, is stored. Where each request takes long, puts the hint
/// and sets `follows` at the same time: a hint to a root that is removed is ignored.
Result<void> CheckPut(Storage& storage, const Root& next, uint64_t size_bytes,
                      std::optional<Result<bool>>& follows) {
  const auto check = [&] { return CheckStored(storage, RootName(next.number), size_bytes); };
  if (storage.transfer_sizes().small_requests <= 1) return check();
  return RunRequests(storage, {check,
                               [&]() -> Result<void> {
                                 follows = HasPredecessor(storage, next);
                                 return {};
                               },
                               [&]() -> Result<void> {
                                 WriteHint(storage, next.number);
                                 return {};
                               }});
}

/// Root `next` exists. Checks that it follows the root that its writer knows. `checked` is the
/// result of HasPredecessor after the put, if it is known; then the hint was written.
CommitOutcome Confirm(Storage& storage, const Root& next, size_t put_count,
                      const std::optional<Result<bool>>& checked = std::nullopt) {
  Result<bool> follows = checked ? *checked : HasPredecessor(storage, next);
  for (int attempt = 0; !follows && attempt + 1 < kPuts; ++attempt) {
    std::this_thread::sleep_for(PauseAfter(attempt));
    follows = HasPredecessor(storage, next);
  }
  if (!follows) return Unknown(next, follows.error());
  if (!*follows) return LeftBehind(storage, next, put_count);
  if (!checked) WriteHint(storage, next.number);
  return {};
}

}  // namespace

Error TakenOver(const Storage& storage, const Root& other) {
  return Error{.code = ErrorCode::kConflict,
               .message = fmt::format("{} has taken over this store; nothing was committed",
                                      Describe(other.writer)),
               .file = ObjectPath(storage.address(), RootName(other.number))};
}

Error Replaced(const Storage& storage) {
  return Error{.code = ErrorCode::kConflict,
               .message = fmt::format("the store at {} was replaced by another one since it was "
                                      "opened; open it again",
                                      storage.address()),
               .file = storage.address()};
}

bool WithdrawRoot(Storage& storage, const Root& root) {
  const auto present = LookAt(storage, root.number, root.commit_id);
  if (!present || *present != Presence::kSame) return false;
  // Best effort: a root that does not follow the one before it is ignored.
  (void)storage.Remove(RootName(root.number));
  return true;
}

Result<bool> IsStillThere(Storage& storage, const Root& root) {
  CAIRN_TRY_ASSIGN(const Presence present, LookAt(storage, root.number, root.commit_id));
  return present == Presence::kSame;
}

Result<std::vector<uint64_t>> ListRoots(Storage& storage) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, storage.List(kRootFolder));
  std::vector<uint64_t> numbers;
  for (const std::string& name : names) {
    if (const auto number = ParseRootName(name)) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

Result<std::optional<Root>> FindNewest(Storage& storage) {
  if (storage.listings_are_current()) {
    CAIRN_TRY_ASSIGN(const std::optional<uint64_t> last, NewestListed(storage));
    if (last) {
      CAIRN_TRY_ASSIGN(std::optional<Root> root, ReadRoot(storage, *last));
      if (root) return root;
    }
  }
  uint64_t hint = 0;
  if (storage.transfer_sizes().small_requests > 1) {
    CAIRN_TRY_ASSIGN(std::optional<Root> root, FindNewestAtOnce(storage, hint));
    if (root) return root;
  } else {
    CAIRN_TRY_ASSIGN(hint, ReadHint(storage));
  }
  // Without a predecessor to check, the first root is not trusted as a start.
  if (hint > 1) {
    CAIRN_TRY_ASSIGN(std::optional<Root> root, SearchFrom(storage, hint));
    if (root) return root;
  }
  for (int attempt = 0; attempt < kSearches; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(PauseAfter(attempt - 1));
    CAIRN_TRY_ASSIGN(std::optional<Root> root, SearchFromListing(storage));
    if (root) return root;
    if (attempt > 0) {
      CAIRN_TRY_ASSIGN(root, SearchBelowStrays(storage, nullptr));
      if (root) return root;
    }
    // An empty listing that agrees with the hint is the usual case of a new store.
    if (hint == 0) {
      CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
      if (numbers.empty()) return std::nullopt;
    }
  }
  return GiveUp(storage, hint);
}

Result<std::optional<Root>> FindNewestOf(Storage& storage, const Uuid& store_uuid,
                                         Result<std::optional<Root>> found) {
  if (found && (!*found || (*found)->store_uuid == store_uuid)) return found;
  for (int attempt = 0; attempt < kPuts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(PauseAfter(attempt));
    CAIRN_TRY_ASSIGN(std::optional<Root> root, SearchBelowStrays(storage, &store_uuid));
    if (root) return root;
  }
  if (!found) return found;
  return Fail(Replaced(storage));
}

Result<std::optional<Root>> FindNewer(Storage& storage, const Root& known) {
  if (storage.listings_are_current()) {
    CAIRN_TRY_ASSIGN(const std::optional<uint64_t> last, NewestListed(storage));
    if (last && *last == known.number) return std::nullopt;
    if (last && *last > known.number) {
      CAIRN_TRY_ASSIGN(std::optional<Root> root, ReadRoot(storage, *last));
      const bool may_be_stray = root && (root->store_uuid != known.store_uuid ||
                                         (*last == known.number + 1 && !Follows(*root, known)));
      if (root && !may_be_stray) return root;
    }
  }
  // The order matters. If both were asked for at once, a root that is removed after its answer, and
  // its successor that is removed before its own, would seem to be the newest.
  CAIRN_TRY_ASSIGN(const bool has_next, RootExists(storage, known.number + 1));
  if (has_next) {
    CAIRN_TRY_ASSIGN(std::optional<Root> root, SearchFrom(storage, known.number + 1));
    if (root && root->store_uuid == known.store_uuid) return root;
  } else {
    CAIRN_TRY_ASSIGN(const Presence present, LookAt(storage, known.number, known.commit_id));
    if (MayBeSame(present)) return std::nullopt;
  }
  CAIRN_TRY_ASSIGN(std::optional<Root> root,
                   FindNewestOf(storage, known.store_uuid, FindNewest(storage)));
  if (root && root->commit_id == known.commit_id) return std::nullopt;
  if (root) return root;
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = "the store has no roots any more",
                    .file = storage.address()});
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
  const std::string name = RootName(next.number);
  std::vector<Uuid> commit_ids;  // of all puts
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
    if (found && *found) {
      if (std::ranges::find(commit_ids, (*found)->commit_id) == commit_ids.end()) {
        return Refused(storage, next, **std::move(found));
      }
      next.commit_id = (*found)->commit_id;
      return Confirm(storage, next, commit_ids.size());
    }
    if (found && put.error().code == ErrorCode::kConflict)
      return LeftBehind(storage, next, commit_ids.size());
    if (attempt + 1 < kPuts) {
      std::this_thread::sleep_for(PauseAfter(attempt));
      continue;
    }
    // In a directory, a call that has failed is not in flight any more.
    if (found && storage.local_files() != nullptr) {
      return NotCommitted(put.error());
    }
    return Unknown(next, found ? put.error() : found.error());
  }
}

Result<void> RemoveOldRoots(Storage& storage, uint64_t newest, uint64_t keep, uint64_t oldest) {
  CAIRN_CHECK(keep >= 2);
  if (newest <= keep) return {};
  const uint64_t end = newest - keep + 1;
  uint64_t begin = oldest == 0 ? end : std::min(oldest, end);
  while (oldest == 0 && begin > 1) {
    CAIRN_TRY_ASSIGN(const bool exists, RootExists(storage, begin - 1));
    if (!exists) break;
    --begin;
  }
  for (uint64_t number = begin; number < end; ++number) {
    CAIRN_TRY(storage.Remove(RootName(number)));
  }
  return {};
}

}  // namespace cairn::kv::internal
