// Objects through which the ranks of an attempt communicate.

#include "kv/state/internal/attempt_outcome.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "kv/io/internal/file.h"

namespace cairn::kv::internal {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxObjectBytes = 1 << 20;
constexpr size_t kMaxMessageBytes = 64 << 10;

std::string NameOf(const std::string& attempt, std::string_view what) {
  return fmt::format("{}{}/{}", kPendingFolder, attempt, what);
}
std::string FailureName(const std::string& attempt) { return NameOf(attempt, "failed"); }
std::string OutcomeName(const std::string& attempt) { return NameOf(attempt, "outcome"); }
constexpr std::string_view kFullSuffix = ".full";
std::string FullName(const std::string& attempt, uint32_t rank) {
  return NameOf(attempt, fmt::format("{}{}", rank, kFullSuffix));
}
std::string AnyFullName(const std::string& attempt) { return NameOf(attempt, "full"); }

json ToJson(const Error& error, uint32_t rank) {
  json text = {{"rank", rank},
               {"code", static_cast<int>(error.code)},
               {"hint", static_cast<int>(error.hint)},
               {"message", error.message.substr(0, kMaxMessageBytes)},
               {"key", error.key},
               {"file", error.file}};
  if (error.step) text["step"] = *error.step;
  if (error.offset_bytes) text["offset_bytes"] = *error.offset_bytes;
  return text;
}

/// Throws a json::exception unless there is an integer: the conversion of another number, such as
/// 1e30, is undefined.
int64_t IntegerIn(const json& text, const char* name) {
  return text.at(name).get_ref<const json::number_integer_t&>();
}

Error ErrorFrom(const json& text) {
  const int64_t code = text.contains("code") ? IntegerIn(text, "code") : 0;
  Error error{.code = static_cast<ErrorCode>(
                  std::clamp<int64_t>(code, 0, static_cast<int64_t>(ErrorCode::kInternal))),
              .hint = static_cast<Hint>(text.contains("hint") ? IntegerIn(text, "hint") : 0),
              .message = text.value("message", ""),
              .key = text.value("key", ""),
              .file = text.value("file", "")};
  if (text.contains("step")) error.step = static_cast<uint64_t>(IntegerIn(text, "step"));
  if (text.contains("offset_bytes")) {
    error.offset_bytes = static_cast<uint64_t>(IntegerIn(text, "offset_bytes"));
  }
  return error;
}

// Keeps an object that exists already.
Result<void> PutBytesOnce(Storage& storage, const std::string& name, std::string_view bytes) {
  Result<void> put = storage.PutIfAbsentVolatile(name, AsBytes(bytes));
  if (!put && put.error().code == ErrorCode::kConflict) return {};
  return put;
}

Result<void> PutOnce(Storage& storage, const std::string& name, const json& text) {
  return PutBytesOnce(storage, name, text.dump(-1, ' ', false, json::error_handler_t::replace));
}

/// The error in the place of one for which there was no space.
Error ErrorOfFullDisk(Storage& storage, std::string_view whose) {
  return {.code = ErrorCode::kResourceExhausted,
          .message = fmt::format("{}: no space left on the device, not even for the error; free "
                                 "some space and try again",
                                 whose),
          .file = storage.address()};
}

/// Returns the ranks for whose errors there was no space, such as "rank 3".
std::string FullRanks(Storage& storage, const std::string& attempt) {
  std::vector<std::string> ranks;
  const std::string folder = NameOf(attempt, "");
  for (const std::string& name : storage.List(folder).value_or(std::vector<std::string>())) {
    if (!name.ends_with(kFullSuffix)) continue;
    ranks.push_back(name.substr(folder.size(), name.size() - folder.size() - kFullSuffix.size()));
  }
  std::ranges::sort(ranks);
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

bool IsPresent(Storage& storage, const std::string& name) {
  return ObjectExists(storage, name).value_or(false);
}

/// Only a disk can be full.
bool IsFull(Storage& storage, const std::string& name) {
  return storage.local_files() != nullptr && IsPresent(storage, name);
}

std::optional<json> Read(Storage& storage, const std::string& name) {
  const auto bytes = storage.Read(name, kMaxObjectBytes);
  if (!bytes) return std::nullopt;
  json text = json::parse(reinterpret_cast<const char*>(bytes->data()),
                          reinterpret_cast<const char*>(bytes->data()) + bytes->size(),
                          /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!text.is_object()) return std::nullopt;
  return text;
}

}  // namespace

bool IsPendingName(std::string_view name) {
  name.remove_prefix(kPendingFolder.size());
  if (name == "dcp-ticket.json") return true;
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos || !IsAttemptName(name.substr(0, slash))) return false;
  name.remove_prefix(slash + 1);
  if (name == "failed" || name == "outcome" || name == "full") return true;
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::string_view stem = name.substr(0, dot);
  const std::string_view suffix = name.substr(dot);
  if (suffix == ".shared") return IsHexDigits(stem, kSharedDigits);
  return (suffix == ".part" || suffix == kFullSuffix) && IsDecimal(stem);
}

std::string PartName(const std::string& attempt, uint32_t rank) {
  return NameOf(attempt, fmt::format("{}.part", rank));
}

std::string SharedName(const std::string& attempt, const std::string& digest) {
  return NameOf(attempt, digest + ".shared");
}

Result<void> PublishFailure(Storage& storage, const std::string& attempt, uint32_t rank,
                            const Error& error, bool kept) {
  if (rank == 0) {
    const json text = {{"error", ToJson(error, rank)}, {"discarded", !kept}};
    Result<void> put = PutOnce(storage, OutcomeName(attempt), text);
    if (kept || put || put.error().code != ErrorCode::kResourceExhausted) return put;
    return PutBytesOnce(storage, FullName(attempt, 0), "");
  }
  // After a rank has put its part, rank 0 may be committing it.
  if (IsPresent(storage, OutcomeName(attempt)) || IsPresent(storage, PartName(attempt, rank)))
    return {};
  Error named = error;
  named.message = fmt::format("rank {}: {}", rank, error.message);
  const json text = {{"error", ToJson(named, rank)}};
  Result<void> put = PutOnce(storage, FailureName(attempt), text);
  if (put || put.error().code != ErrorCode::kResourceExhausted) return put;
  (void)PutBytesOnce(storage, FullName(attempt, rank), "");
  return PutBytesOnce(storage, AnyFullName(attempt), "");
}

Result<void> PublishCommitted(Storage& storage, const std::string& attempt, uint64_t generation) {
  return PutOnce(storage, OutcomeName(attempt), {{"committed", generation}});
}

std::optional<Error> FindFailure(Storage& storage, const std::string& attempt) try {
  const auto text = Read(storage, FailureName(attempt));
  if (!text && IsFull(storage, AnyFullName(attempt))) {
    return ErrorOfFullDisk(storage, FullRanks(storage, attempt));
  }
  if (!text) return std::nullopt;
  return ErrorFrom(text->at("error"));
} catch (const json::exception&) {
  return std::nullopt;  // no rank wrote this
}

std::optional<Outcome> FindOutcome(Storage& storage, const std::string& attempt) try {
  const auto text = Read(storage, OutcomeName(attempt));
  if (!text && IsFull(storage, FullName(attempt, 0))) {
    return Outcome{.generation = Fail(ErrorOfFullDisk(storage, "rank 0")), .discarded = true};
  }
  if (!text) return std::nullopt;
  if (text->contains("error")) {
    return Outcome{.generation = Fail(ErrorFrom(text->at("error"))),
                   .discarded = text->at("discarded").get<bool>()};
  }
  return Outcome{.generation = static_cast<uint64_t>(IntegerIn(*text, "committed"))};
} catch (const json::exception&) {
  return std::nullopt;
}

void RecordAttempt(const std::string& attempt, std::deque<std::string>& attempts) {
  if (std::ranges::find(attempts, attempt) == attempts.end()) attempts.push_back(attempt);
}

void ForgetAttempt(Storage& storage, const std::string& attempt, bool keeps_failure) {
  auto names = storage.List(NameOf(attempt, ""));
  if (!names) return;
  const auto outcome = std::ranges::find(*names, OutcomeName(attempt));
  if (keeps_failure && outcome != names->end()) {
    const auto found = FindOutcome(storage, attempt);
    if (found && !found->generation) names->erase(outcome);
  }
  (void)ForEachRequest(storage, names->size(), [&](size_t i) -> Result<void> {
    if (IsPendingName((*names)[i])) (void)storage.Remove((*names)[i]);
    return {};
  });
}

Result<std::string> NewSession(uint32_t epoch) {
  uint32_t random[3] = {};
  if (::getrandom(random, sizeof(random), 0) != sizeof(random)) {
    return Fail(SystemError(errno, "cannot generate a session id"));
  }
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", epoch, random[0], random[1], random[2]);
}

std::optional<uint32_t> EpochOfSession(std::string_view name) {
  constexpr size_t kEpochDigits = 8;
  if (name.size() < kSessionDigits) return std::nullopt;
  uint32_t epoch = 0;
  const char* const end = name.data() + kEpochDigits;
  const auto [parsed, failed] = std::from_chars(name.data(), end, epoch, 16);
  if (failed != std::errc() || parsed != end) return std::nullopt;
  return epoch;
}

Poll::Poll(std::chrono::steady_clock::time_point deadline, uint32_t poller_count)
    : deadline_(deadline),
      longest_pause_(std::max<uint64_t>(20'000, uint64_t{100} * poller_count)) {}

bool Poll::Again() {
  const auto now = std::chrono::steady_clock::now();
  if (now >= deadline_) return false;
  std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause_, deadline_ - now));
  pause_ = std::min(longest_pause_, pause_ * 5 / 4);
  return true;
}

}  // namespace cairn::kv::internal
