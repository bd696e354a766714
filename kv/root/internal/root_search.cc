// From the hint, a listing, or a known root to the newest.

#include "kv/root/internal/root_search.h"

#include <fmt/format.h>

#include <charconv>
#include <span>
#include <string>
#include <thread>

#include "kv/base/digest.h"
#include "kv/root/internal/framed_record.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

using DecodeFunction = Result<Root>(std::span<const std::byte> object);

Result<std::optional<Root>> ReadRootBy(Storage& storage, uint64_t number, DecodeFunction* decode) {
  const std::string name = RootName(number);
  const auto object = storage.Read(name, kMaxFramedBytes);
  if (!object && object.error().code == ErrorCode::kNotFound) return std::nullopt;
  if (!object) return std::unexpected(object.error());
  auto root = decode(*object);
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

// `hint` has three lines of a fixed length, so that a hint that is written over another one is
// complete if its checksum matches. A number has 20 digits.

constexpr size_t kHintLinesBytes = 64;  // without the checksum
constexpr size_t kHintBytes = 90;

std::string HintLines(const Uuid& store_uuid, uint64_t number) {
  return fmt::format("root {:020}\nuuid {}\n", number, UuidText(store_uuid));
}

std::string WithChecksum(const std::string& lines) {
  return fmt::format("{}checksum {:016x}\n", lines, Checksum64(std::as_bytes(std::span(lines))));
}

std::string HintText(const Uuid& store_uuid, uint64_t number) {
  std::string text = WithChecksum(HintLines(store_uuid, number));
  CAIRN_CHECK(text.size() == kHintBytes);
  return text;
}

struct RootHint {
  uint64_t number = 0;
  std::string lines;

  /// Returns whether the store has had root `number`.
  bool IsOf(const Uuid& store_uuid) const {
    return number > 0 && lines == HintLines(store_uuid, number);
  }
  /// Returns whether the store of `root` has had a newer one.
  bool IsAfter(const Root& root) const { return number > root.number && IsOf(root.store_uuid); }
};

/// Returns number 0 if there is no hint, or it is torn.
Result<RootHint> ReadRootHint(Storage& storage) {
  std::string text(kHintBytes, '\0');
  const auto read = storage.ReadRange(kHintName, 0, std::as_writable_bytes(std::span(text)));
  if (!read &&
      (read.error().code == ErrorCode::kNotFound || read.error().code == ErrorCode::kDataLoss)) {
    return RootHint();
  }
  CAIRN_TRY(read);
  RootHint hint{.lines = text.substr(0, kHintLinesBytes)};
  if (text != WithChecksum(hint.lines)) return RootHint();
  constexpr std::string_view kBegin = "root ";
  const char* const digits = text.data() + kBegin.size();
  (void)std::from_chars(digits, digits + 20, hint.number);
  if (hint.number > kMaxRootNumber) hint.number = 0;
  return hint;
}

}  // namespace

Result<std::optional<Root>> ReadRoot(Storage& storage, uint64_t number) {
  return ReadRootBy(storage, number, DecodeRoot);
}

Result<std::optional<Root>> ReadRootIdentity(Storage& storage, uint64_t number) {
  return ReadRootBy(storage, number, DecodeRootIdentity);
}

Result<bool> RootExists(Storage& storage, uint64_t number) {
  return ObjectExists(storage, RootName(number));
}

Result<uint64_t> ReadHint(Storage& storage, const Uuid& store_uuid) {
  CAIRN_TRY_ASSIGN(const RootHint hint, ReadRootHint(storage));
  return hint.IsOf(store_uuid) ? hint.number : 0;
}

void WriteHint(Storage& storage, const Uuid& store_uuid, uint64_t number) {
  const std::string text = HintText(store_uuid, number);
  (void)storage.Overwrite(kHintName, std::as_bytes(std::span(text)));
}

void RaiseHint(Storage& storage, const Uuid& store_uuid, uint64_t number) {
  const Result<RootHint> hint = ReadRootHint(storage);
  if (!hint || (hint->number > 0 && !hint->IsOf(store_uuid)) || hint->number >= number) return;
  // No later commit makes up for a put that a busy server refuses.
  const std::string text = HintText(store_uuid, number);
  (void)storage.PutVolatile(kHintName, std::as_bytes(std::span(text)));
}

bool MayBeSame(Presence presence) {
  return presence == Presence::kSame || presence == Presence::kUnclear;
}

namespace {

/// Compares root `number` with the one that has this commit id, or this checksum.
Result<Presence> LookAt(Storage& storage, uint64_t number, const Uuid& commit_id,
                        std::optional<uint64_t> checksum) {
  const auto object = storage.Read(RootName(number), kMaxFramedBytes);
  if (!object && object.error().code == ErrorCode::kNotFound) return Presence::kAbsent;
  if (!object && object.error().code != ErrorCode::kDataLoss) {
    return std::unexpected(object.error());
  }
  // Usually it is the same object, which need not be decompressed to see that.
  if (object && checksum && FrameChecksum(*object) == checksum) return Presence::kSame;
  const auto root = object ? DecodeRootIdentity(*object) : Result<Root>(Fail(object.error()));
  if (!root || root->number != number) return Presence::kUnclear;
  return root->commit_id == commit_id ? Presence::kSame : Presence::kOther;
}

}  // namespace

Result<Presence> LookAgain(Storage& storage, const Root& root) {
  return LookAt(storage, root.number, root.commit_id, root.checksum);
}

Result<Presence> LookBefore(Storage& storage, const Root& root) {
  if (!root.predecessor) return Presence::kAbsent;
  return LookAt(storage, root.number - 1, *root.predecessor, std::nullopt);
}

bool Follows(const Root& next, const Root& root) {
  return next.store_uuid == root.store_uuid && next.predecessor == root.commit_id;
}

Result<uint64_t> ProbeForward(Storage& storage, uint64_t number) {
  uint64_t exists = number;
  uint64_t absent = std::max(kMaxRootNumber, number) + 1;
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

Result<uint64_t> ProbeBackward(Storage& storage, uint64_t number) {
  uint64_t exists = number;
  uint64_t absent = 0;
  for (uint64_t distance = 1; distance < exists - absent;) {
    CAIRN_TRY_ASSIGN(const bool found, RootExists(storage, exists - distance));
    if (!found) absent = exists - distance;
    if (found) exists -= distance;
    // Usually there is one.
    if (exists + 1 < number) distance *= 2;
  }
  while (exists - absent > 1) {
    const uint64_t middle = absent + (exists - absent) / 2;
    CAIRN_TRY_ASSIGN(const bool found, RootExists(storage, middle));
    (found ? exists : absent) = middle;
  }
  return exists;
}

Result<std::vector<uint64_t>> ListRoots(Storage& storage) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, storage.List(kRootFolder));
  std::vector<uint64_t> numbers;
  for (const std::string& name : names) {
    const auto number = ParseRootName(name);
    if (number && *number > 0 && *number <= kMaxRootNumber) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

Result<bool> FirstRootRemains(Storage& storage, const Uuid& store_uuid) {
  CAIRN_TRY_ASSIGN(const uint64_t hint, ReadHint(storage, store_uuid));
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  const uint64_t last = std::max(hint, numbers.empty() ? 0 : numbers.back());
  if (last <= 1) return true;
  CAIRN_TRY_ASSIGN(const uint64_t newest, ProbeForward(storage, last));
  return newest <= kKeptRoots;
}

Error Replaced(const Storage& storage) {
  return Error{.code = ErrorCode::kConflict,
               .message = fmt::format("the store at {} was replaced by another one since it was "
                                      "opened; open it again",
                                      storage.address()),
               .file = storage.address()};
}

namespace {

// A search starts again if the roots change, or the listing is late. Ten attempts take a second.
constexpr int kSearches = 10;
// Number of searches below the roots of other stores.
constexpr int kSearchesBelow = 3;

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

/// Reads the root that NewestListed has returned. Returns nothing if it has been removed since: a
/// writer that was paused for long may then put another one under its number.
Result<std::optional<Root>> ReadListed(Storage& storage, uint64_t number) {
  CAIRN_TRY_ASSIGN(std::optional<Root> root, ReadRoot(storage, number));
  if (!root) return root;
  // The order matters: roots are removed in ascending order.
  if (number == 1) {
    CAIRN_TRY_ASSIGN(const std::optional<uint64_t> last, NewestListed(storage));
    return last == number ? std::move(root) : std::nullopt;
  }
  CAIRN_TRY_ASSIGN(const Presence before, LookBefore(storage, *root));
  return MayBeSame(before) ? std::move(root) : std::nullopt;
}

/// Searches below the stray roots that a listing names: a writer has put them whose store was
/// replaced by this one, and has ended before it could remove them. `store_uuid` is null if it is
/// not known. Returns nothing if there are none, or if roots were put or removed during the search.
Result<std::optional<Root>> SearchBelowStrays(Storage& storage, const Uuid* store_uuid) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  bool has_strays = false;
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    CAIRN_TRY_ASSIGN(const std::optional<Root> root, ReadRootIdentity(storage, *number));
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
    CAIRN_TRY_ASSIGN(const std::optional<Root> next, ReadRootIdentity(storage, *number + 1));
    if (next && Follows(*next, *root)) return std::nullopt;
    CAIRN_TRY_ASSIGN(std::optional<Root> newest, ReadRoot(storage, *number));
    if (!newest || newest->commit_id != root->commit_id) return std::nullopt;
    if (*number == 1) {
      CAIRN_TRY_ASSIGN(const bool remains, FirstRootRemains(storage, root->store_uuid));
      return remains ? std::move(newest) : std::nullopt;
    }
    CAIRN_TRY_ASSIGN(const Presence before, LookBefore(storage, *root));
    return MayBeSame(before) ? std::move(newest) : std::nullopt;
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

/// The newest roots are lost: the hint names a newer one than root `newest`.
Error LostNewest(const Storage& storage, uint64_t hint, uint64_t newest) {
  return Error{.code = ErrorCode::kDataLoss,
               .hint = Hint::kRebuild,
               .message = fmt::format("root {} was committed, but root {} is the newest one that "
                                      "exists: rebuild the store; or, if it was copied by other "
                                      "means while it was written, remove the file {}",
                                      hint, newest, kHintName),
               .file = ObjectPath(storage.address(), RootName(hint))};
}

Result<std::optional<Root>> GiveUp(Storage& storage, const RootHint& hint) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
  if (!numbers.empty()) {
    const uint64_t last = numbers.back();
    const auto root = ReadRootIdentity(storage, last);
    const bool exists = root && *root;
    // The root before it may be lost, too.
    if (exists && last > 1 && !(*root)->predecessor) {
      return Fail(
          Error{.code = ErrorCode::kDataLoss,
                .hint = Hint::kRebuild,
                .message = fmt::format("root {} is the first one of a rebuild, and the next "
                                       "one is missing; run the rebuild again",
                                       last),
                .file = ObjectPath(storage.address(), RootName(last))});
    }
    // The root of a writer that was paused for more than kKeptRoots commits is older than the hint.
    CAIRN_TRY_ASSIGN(const bool is_alone, IsAlone(storage, last));
    if (is_alone && exists && !hint.IsAfter(**root)) {
      return Fail(Error{
          .code = ErrorCode::kDataLoss,
          .message = fmt::format("root {} has no predecessor: root {} is missing", last, last - 1),
          .file = ObjectPath(storage.address(), RootName(last - 1))});
    }
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = fmt::format(
                          "cannot find the newest root: the listing names root {}, but it does not "
                          "exist or has no predecessor; the listing may be late, or other "
                          "processes put and remove roots all the time: try again",
                          last),
                      .file = storage.address()});
  }
  return std::nullopt;
}

using ReadFunction = Result<std::optional<Root>>(Storage& storage, uint64_t number);

/// Reads a root that a current listing names by `read`.
Result<std::optional<Root>> Search(Storage& storage, ReadFunction* read) {
  // The order matters: no root that is found afterwards may be older than the hint. A listing at
  // the same time may be, and is then followed by a search.
  Result<RootHint> hint = RootHint();
  Result<std::optional<uint64_t>> last = std::nullopt;
  CAIRN_TRY(RunRequests(storage, {[&]() -> Result<void> {
                                    hint = ReadRootHint(storage);
                                    return {};
                                  },
                                  [&]() -> Result<void> {
                                    if (storage.listings_are_current())
                                      last = NewestListed(storage);
                                    return {};
                                  }}));
  CAIRN_TRY(hint);
  CAIRN_TRY(last);
  if (*last) {
    CAIRN_TRY_ASSIGN(std::optional<Root> root, read(storage, **last));
    if (root && !hint->IsAfter(*root)) return root;
  }
  // Without a predecessor to check, the first root is not trusted as a start.
  if (hint->number > 1) {
    CAIRN_TRY_ASSIGN(std::optional<Root> root, SearchFrom(storage, hint->number));
    if (root && !hint->IsAfter(*root)) return root;
  }
  uint64_t older = 0;  // the newest root, if it is older than the hint
  for (int attempt = 0; attempt < kSearches; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(PauseAfter(attempt - 1));
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage));
    CAIRN_TRY_ASSIGN(std::optional<Root> root,
                     SearchFrom(storage, numbers.empty() ? 1 : numbers.back()));
    if (!root && attempt > 0) {
      CAIRN_TRY_ASSIGN(root, SearchBelowStrays(storage, nullptr));
    }
    if (root && !hint->IsAfter(*root)) return root;
    older = root ? root->number : 0;
    // An empty listing that agrees with the hint is the usual case of a new store.
    if (hint->number == 0 && numbers.empty()) return std::nullopt;
  }
  if (older > 0) return Fail(LostNewest(storage, hint->number, older));
  return GiveUp(storage, *hint);
}

}  // namespace

Result<std::optional<Root>> FindNewest(Storage& storage) { return Search(storage, ReadListed); }
Result<std::optional<Root>> FindNewestUnchecked(Storage& storage) {
  return Search(storage, ReadRoot);
}

Result<std::optional<Root>> FindNewestOf(Storage& storage, const Uuid& store_uuid,
                                         Result<std::optional<Root>> found) {
  if (found && (!*found || (*found)->store_uuid == store_uuid)) return found;
  for (int attempt = 0; attempt < kSearchesBelow; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(PauseAfter(attempt));
    CAIRN_TRY_ASSIGN(const uint64_t hint, ReadHint(storage, store_uuid));
    CAIRN_TRY_ASSIGN(std::optional<Root> root, SearchBelowStrays(storage, &store_uuid));
    if (root && root->number >= hint) return root;
    if (root) found = Fail(LostNewest(storage, hint, root->number));
  }
  if (!found) return found;
  return Fail(Replaced(storage));
}

Result<std::optional<Root>> FindNewer(Storage& storage, const Root& known) {
  if (storage.listings_are_current()) {
    CAIRN_TRY_ASSIGN(const std::optional<uint64_t> last, NewestListed(storage));
    if (last && *last == known.number) return std::nullopt;
    if (last && *last > known.number) {
      auto root = ReadListed(storage, *last);
      // A stray root may be a newer Cairn's.
      if (!root && root.error().code != ErrorCode::kUnimplemented) return root;
      if (root && *root && (*root)->store_uuid == known.store_uuid) return root;
    }
  }
  // The order matters. If both were asked for at once, a root that is removed after its answer, and
  // its successor that is removed before its own, would seem to be the newest.
  CAIRN_TRY_ASSIGN(const bool has_next, RootExists(storage, known.number + 1));
  if (has_next) {
    auto root = SearchFrom(storage, known.number + 1);
    if (!root && root.error().code != ErrorCode::kUnimplemented) return root;
    if (root && *root && (*root)->store_uuid == known.store_uuid) return root;
  } else {
    CAIRN_TRY_ASSIGN(const Presence present, LookAgain(storage, known));
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

}  // namespace cairn::kv::internal
