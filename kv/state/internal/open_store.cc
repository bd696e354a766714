// Opens for reading lock and write nothing. An open for writing is one commit.

#include "kv/state/internal/open_store.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

#include "kv/io/internal/free_space.h"
#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_identity.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {
namespace {

constexpr int kReads = 3;  // attempts at a store that is replaced in the meantime

/// Replaces the root that this process knows. `known` is the one from which the search for `root`
/// began; null if no other thread can have found a root.
void SetRoot(StoreState& state, Root root, const CommittedRoot* known = nullptr) {
  StepList steps(state.storage, root);
  const MutexLock lock(state.mutex);
  // Another thread may have found a newer one since. Readers never go back, except to what a
  // rebuild or a restored backup has left.
  const bool was_replaced = known != nullptr && state.root.get() != known;
  if (was_replaced && state.root->root.number >= root.number) return;
  state.root = std::make_shared<const CommittedRoot>(
      CommittedRoot{.root = std::move(root), .steps = std::move(steps)});
  state.latest = nullptr;
}

/// Checks the result of FindNewest, and returns the newest root; one without steps and with number
/// 0 for a store that has just been created. kDataLoss: the roots of a store with tables or
/// segments are gone, or they belong to another store.
Result<Root> CheckNewest(StoreState& state, Result<std::optional<Root>> found) {
  if (found && !*found) {
    // The first root of a store precedes them.
    CAIRN_TRY_ASSIGN(const bool has_more, HasObjects(*state.storage, {"tables/", "segments/"}));
    CAIRN_TRY_ASSIGN(const uint64_t hint, ReadHint(*state.storage, state.uuid));
    if (!has_more && hint == 0) return Root{.store_uuid = state.uuid};
    // Another process may have put the first root, and more, since the search.
    found = FindNewest(*state.storage);
  }
  found = FindNewestOf(*state.storage, state.uuid, std::move(found));
  if (!found && found.error().code == ErrorCode::kConflict) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .hint = Hint::kRestoreStore,
                      .message = "the newest root belongs to another store, so the objects of two "
                                 "stores are mixed here",
                      .file = state.storage->address()});
  }
  if (!found) return Fail(ExplainLoss(state, std::move(found).error()));
  if (!*found) {
    return Fail(ExplainLoss(state, {.code = ErrorCode::kDataLoss,
                                    .message = "all roots of this store are missing",
                                    .file = state.storage->address()}));
  }
  return **std::move(found);
}

using ReadFunction = Result<Uuid>(Storage& storage, Features* features);

/// Reads the identity of the store with `read`, and its newest root (FindNewestUnchecked).
Result<Root> ReadStoreOnce(StoreState& state, ReadFunction* read) {
  Result<Uuid> uuid = Uuid();
  Result<std::optional<Root>> found = std::nullopt;
  CAIRN_TRY(RunRequests(*state.storage, {[&]() -> Result<void> {
                                           uuid = read(*state.storage, &state.features);
                                           return uuid ? Result<void>() : Fail(uuid.error());
                                         },
                                         [&]() -> Result<void> {
                                           found = FindNewestUnchecked(*state.storage);
                                           return {};
                                         }}));
  state.uuid = *uuid;
  return CheckNewest(state, std::move(found));
}

/// As ReadStoreOnce, but reads again if the store was replaced by another one in between.
Result<Root> ReadStore(StoreState& state, ReadFunction* read) {
  for (int attempt = 1;; ++attempt) {
    Result<Root> root = ReadStoreOnce(state, read);
    const bool may_be_replaced = !root && (root.error().code == ErrorCode::kDataLoss ||
                                           root.error().code == ErrorCode::kConflict);
    if (!may_be_replaced || attempt == kReads) return root;
    const Uuid known = state.uuid;
    const auto uuid = ReadIdentity(*state.storage);
    if (!uuid || *uuid == known) return root;
  }
}

/// Sets the session that a rank joins. kInvalidArgument: no session has this name, which is a part
/// of names of objects.
Result<void> SetSession(StoreState& state) {
  const std::string& session = state.options.session;
  const auto epoch = EpochOfSession(session);
  if (!epoch || !IsObjectName(session) || session.contains('/')) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "joining a store requires the session of the rank that has it "
                                 "open for writing",
                      .file = state.storage->address()});
  }
  state.session = session;
  state.epoch = *epoch;
  return {};
}

/// kFailedPrecondition: rank 0 does not have the session open.
Result<void> CheckSession(const StoreState& state) {
  CAIRN_TRY_ASSIGN(const bool is_open, ObjectExists(*state.storage, LeaseName(state.session)));
  if (is_open) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message =
                        "rank 0 has no such session open in this directory; all ranks must be "
                        "given the same directory, on a file system that they share",
                    .file = state.storage->address()});
}

/// kUnimplemented: the store, whose newest root is `root`, has a write feature that this build does
/// not know.
Result<void> CheckCanWriteTo(const StoreState& state, const Root& root) {
  const std::string& address = state.storage->address();
  CAIRN_TRY(CheckCanWrite(state.features, ObjectPath(address, kIdentityName)));
  return CheckCanWrite(root.features, ObjectPath(address, RootName(root.number)));
}

}  // namespace

Result<void> OpenForReading(StoreState& state) {
  if (!state.joined && state.storage->has_been_read()) {
    SetRoot(state, Root());
    state.unread = true;
    return {};
  }
  if (state.joined) CAIRN_TRY(SetSession(state));
  CAIRN_TRY_ASSIGN(Root root, ReadStore(state, ReadIdentity));
  if (state.joined) {
    CAIRN_TRY(CheckCanWriteTo(state, root));
    CAIRN_TRY(CheckSession(state));
  }
  SetRoot(state, std::move(root));
  return {};
}

namespace {

Result<void> CommitEpoch(StoreState& state, Root& next) {
  CommitOutcome outcome = CommitRoot(*state.storage, next);
  if (outcome.state == CommitOutcome::State::kNotCommitted && outcome.other) {
    return Fail(Error{.code = ErrorCode::kConflict,
                      .message = fmt::format("{} has opened this store for writing at the same "
                                             "time; close it there, open for reading, or take over",
                                             Describe(outcome.other->writer)),
                      .file = state.storage->address()});
  }
  state.outcome_unknown = outcome.state == CommitOutcome::State::kUnknown;
  if (outcome.state != CommitOutcome::State::kCommitted) return Fail(std::move(outcome.error));
  // The root before it, if there is one, may be a stray, too, of a writer whose store was replaced.
  const auto is_own = [&]() -> Result<bool> {
    CAIRN_TRY_ASSIGN(const Uuid uuid, ReadIdentity(*state.storage));
    return uuid == state.uuid;
  };
  Result<bool> owned = is_own();
  if (owned && !*owned) (void)WithdrawRoot(*state.storage, next, is_own);
  // As for every root (root_log.h), looked at last: its store may have returned in between.
  if (owned && *owned) owned = IsStillThere(*state.storage, next);
  if (owned && *owned) return {};
  Error error = owned ? Replaced(*state.storage) : owned.error();
  error.message =
      fmt::format("it is unknown whether root {} was committed: {}", next.number, error.message);
  return Fail(std::move(error));
}

/// The first epoch of a store is random, so that names differ from the names in an earlier or later
/// store at this address: a copied segment has the same id in all stores.
uint32_t FirstEpoch(const Uuid& uuid) {
  constexpr uint32_t kMost = (1u << 28) - 1;
  uint32_t random = 0;
  std::memcpy(&random, uuid.data(), sizeof(random));
  return 1 + (random & kMost);
}

}  // namespace

Result<void> OpenForWriting(StoreState& state) {
  CAIRN_TRY_ASSIGN(Root last, ReadStore(state, CreateIdentity));
  if (last.number > 0) {
    auto newer = FindNewer(*state.storage, last);
    if (!newer) return Fail(ExplainLoss(state, std::move(newer).error()));
    if (*newer) last = **std::move(newer);
  }
  CAIRN_TRY(CheckCanWriteTo(state, last));
  CAIRN_TRY(CheckCanFollow(*state.storage, RootName(last.number), last.number, last.epoch));
  // A writer puts its lease before it commits the root of its epoch. So if the writer of this root
  // is alive, its lease exists; and if another one commits first, the commit below fails.
  bool has_ended = last.number == 0;
  if (!state.options.take_over && last.number > 0) {
    CAIRN_TRY_ASSIGN(has_ended, CheckLease(*state.storage, last.writer.session));
  }
  state.epoch = last.epoch == 0 ? FirstEpoch(state.uuid) : last.epoch + 1;
  CAIRN_TRY_ASSIGN(state.session, NewSession(state.epoch));
  Root next = Successor(last, kAnnouncedFor);
  next.epoch = state.epoch;
  next.writer = ThisWriter(state.session);
  const auto commit = [&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(state.lease, LeaseKeeper::Take(state.storage, next.writer, state.epoch));
    const auto committed = CommitEpoch(state, next);
    if (!committed) (void)state.lease->Release();
    return committed;
  };
  SetRoot(state, std::move(last));  // which states what is due, if the disk is full
  // A former writer that continues may use again what is due.
  const auto free_space = [&](uint64_t& seen) -> std::optional<std::string> {
    if (has_ended) return FreeSpaceForCommit(state, seen);
    return "; nothing is removed first, because the former writer may continue";
  };
  CAIRN_TRY(WithSpace(free_space, commit));
  SetRoot(state, std::move(next));
  Sweep(state);
  return {};
}

Result<std::shared_ptr<const CommittedRoot>> ReadRootOf(const StoreState& state, uint64_t number) {
  CAIRN_TRY_ASSIGN(const auto bytes, state.storage->Read(RootName(number), kMaxFramedBytes));
  CAIRN_TRY_ASSIGN(Root root, DecodeRoot(bytes));
  if (root.number != number || root.store_uuid != state.uuid) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "the root belongs to another store",
                      .file = state.storage->address()});
  }
  StepList steps(state.storage, root);
  return std::make_shared<const CommittedRoot>(
      CommittedRoot{.root = std::move(root), .steps = std::move(steps)});
}

namespace {

/// Reads the store if OpenForReading did not. Returns whether this call did.
Result<bool> ReadIfUnread(StoreState& state) {
  if (!state.unread) return false;
  const MutexLock lock(state.first_read_mutex);
  if (!state.unread) return false;
  CAIRN_TRY_ASSIGN(Root root, ReadStore(state, ReadIdentity));
  SetRoot(state, std::move(root));
  state.unread = false;
  return true;
}

}  // namespace

Result<bool> RefreshRoot(StoreState& state) {
  CAIRN_TRY_ASSIGN(const bool was_unread, ReadIfUnread(state));
  if (was_unread) return true;
  const auto known = CurrentRoot(state);
  if (known->root.number == 0) {
    CAIRN_TRY_ASSIGN(Root root, CheckNewest(state, FindNewest(*state.storage)));
    if (root.number == 0) return false;
    SetRoot(state, std::move(root), known.get());
    return true;
  }
  auto newer = FindNewer(*state.storage, known->root);
  if (!newer) return Fail(ExplainLoss(state, std::move(newer).error()));
  if (!*newer) return false;
  SetRoot(state, **std::move(newer), known.get());
  // A reader that is open for a long time must not keep what the writer frees.
  state.files->DropRemoved();
  state.tables->DropRemoved();
  return true;
}

}  // namespace cairn::kv::internal
