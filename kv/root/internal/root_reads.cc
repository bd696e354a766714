// Requests for single roots and the hint.

#include "kv/root/internal/root_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string>

#include "kv/root/internal/framed_record.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

Result<std::optional<Root>> ReadRoot(Storage& storage, uint64_t number) {
  const std::string name = RootName(number);
  const auto object = storage.Read(name, kMaxFramedBytes);
  if (!object && object.error().code == ErrorCode::kNotFound) return std::nullopt;
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

Result<bool> RootExists(Storage& storage, uint64_t number) {
  return ObjectExists(storage, RootName(number));
}

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
  return whole && number <= kMaxRootNumber ? number : 0;
}

void WriteHint(Storage& storage, uint64_t number) {
  if (number % kHintInterval != 0) return;
  // Best effort: without a hint, or with an old one, a search takes longer and finds the same.
  const std::string text = std::to_string(number);
  (void)storage.PutVolatile(kHintName, std::as_bytes(std::span(text)));
}

bool MayBeSame(Presence presence) {
  return presence == Presence::kSame || presence == Presence::kUnclear;
}

Result<Presence> LookAt(Storage& storage, uint64_t number, const std::optional<Uuid>& commit_id) {
  if (!commit_id) {
    CAIRN_TRY_ASSIGN(const bool exists, RootExists(storage, number));
    return exists ? Presence::kUnclear : Presence::kAbsent;
  }
  const auto object = storage.Read(RootName(number), kMaxFramedBytes);
  if (!object && object.error().code == ErrorCode::kNotFound) return Presence::kAbsent;
  if (!object && object.error().code != ErrorCode::kDataLoss) {
    return std::unexpected(object.error());
  }
  const auto identity =
      object ? DecodeRootIdentity(*object) : Result<RootIdentity>(Fail(object.error()));
  if (!identity || identity->number != number) return Presence::kUnclear;
  return identity->commit_id == *commit_id ? Presence::kSame : Presence::kOther;
}

Result<Presence> LookBefore(Storage& storage, const Root& root) {
  return LookAt(storage, root.number - 1, root.predecessor);
}

bool Follows(const Root& next, const Root& root) {
  return next.store_uuid == root.store_uuid &&
         (!next.predecessor || *next.predecessor == root.commit_id);
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

Result<bool> FirstRootRemains(Storage& storage) {
  CAIRN_TRY_ASSIGN(const uint64_t hint, ReadHint(storage));
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

}  // namespace cairn::kv::internal
