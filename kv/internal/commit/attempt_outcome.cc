// Files through which the ranks of an attempt communicate.

#include "kv/internal/commit/attempt_outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "kv/internal/io/fault_point.h"
#include "kv/internal/io/file.h"

namespace cairn::kv::internal {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxMessageBytes = 64 << 10;

std::string FailurePath(const StorePaths& paths, const std::string& attempt) {
  return paths.attempt(attempt) + "/failed";
}
std::string OutcomePath(const StorePaths& paths, const std::string& attempt) {
  return paths.attempt(attempt) + "/outcome";
}

json ToJson(const Error& error, uint32_t rank) {
  json text = {{"rank", rank},
               {"code", static_cast<int>(error.code)},
               {"message", error.message.substr(0, kMaxMessageBytes)},
               {"key", error.key},
               {"file", error.file}};
  if (error.step) text["step"] = *error.step;
  if (error.offset_bytes) text["offset_bytes"] = *error.offset_bytes;
  return text;
}

Error ErrorFrom(const json& text) {
  Error error{.code = static_cast<ErrorCode>(
                  std::clamp(text.value("code", 0), 0, static_cast<int>(ErrorCode::kInternal))),
              .message = text.value("message", ""),
              .key = text.value("key", ""),
              .file = text.value("file", "")};
  if (text.contains("step")) error.step = text.value("step", uint64_t{0});
  if (text.contains("offset_bytes")) error.offset_bytes = text.value("offset_bytes", uint64_t{0});
  return error;
}

// Creates the file atomically, because other ranks poll for it. Keeps a file that exists already.
Result<void> CreateOnce(const std::string& path, uint32_t rank, const json& text) {
  if (Exists(path)) return {};
  const std::string temporary = fmt::format("{}.{}", path, rank);
  CAIRN_TRY(RemoveFile(temporary));
  CAIRN_TRY_ASSIGN(File file, File::Create(temporary, /*direct=*/false));
  const std::string bytes = text.dump(-1, ' ', false, json::error_handler_t::replace);
  CAIRN_TRY(file.Append(AsBytes(bytes), "attempt.write"));
  return Rename(temporary, path, "attempt.rename");
}

std::optional<json> Read(const std::string& path) {
  const auto bytes = ReadWholeFile(path, kMaxFileBytes);
  if (!bytes) return std::nullopt;
  json text = json::parse(reinterpret_cast<const char*>(bytes->data()),
                          reinterpret_cast<const char*>(bytes->data()) + bytes->size(),
                          /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!text.is_object()) return std::nullopt;
  return text;
}

}  // namespace

std::string SharedPath(const StorePaths& paths, const std::string& attempt,
                       const std::string& digest) {
  return fmt::format("{}/{}.shared", paths.attempt(attempt), digest);
}

Result<void> PublishFailure(const StorePaths& paths, const std::string& attempt, uint32_t rank,
                            const Error& error, bool kept) {
  CAIRN_TRY(MakeDirectory(paths.attempt(attempt)));
  if (rank == 0) {
    return CreateOnce(OutcomePath(paths, attempt), rank,
                      {{"error", ToJson(error, rank)}, {"discarded", !kept}});
  }
  // After a rank has prepared its part, rank 0 may be committing it.
  if (Exists(OutcomePath(paths, attempt)) || Exists(paths.pending_manifest(attempt, rank))) {
    return {};
  }
  Error named = error;
  named.message = fmt::format("rank {}: {}", rank, error.message);
  return CreateOnce(FailurePath(paths, attempt), rank, {{"error", ToJson(named, rank)}});
}

Result<void> PublishCommitted(const StorePaths& paths, const std::string& attempt,
                              uint64_t generation) {
  return CreateOnce(OutcomePath(paths, attempt), 0, {{"committed", generation}});
}

std::optional<Error> FindFailure(const StorePaths& paths, const std::string& attempt) try {
  const auto text = Read(FailurePath(paths, attempt));
  if (!text) return std::nullopt;
  return ErrorFrom(text->at("error"));
} catch (const json::exception&) {
  return std::nullopt;  // no rank wrote this
}

std::optional<Outcome> FindOutcome(const StorePaths& paths, const std::string& attempt) try {
  const auto text = Read(OutcomePath(paths, attempt));
  if (!text) return std::nullopt;
  if (text->contains("error")) {
    return Outcome{.generation = Fail(ErrorFrom(text->at("error"))),
                   .discarded = text->at("discarded").get<bool>()};
  }
  return Outcome{.generation = text->at("committed").get<uint64_t>()};
} catch (const json::exception&) {
  return std::nullopt;
}

void RecordAttempt(const std::string& attempt, std::deque<std::string>& attempts) {
  if (std::ranges::find(attempts, attempt) == attempts.end()) attempts.push_back(attempt);
}

void ForgetAttempt(const StorePaths& paths, const std::string& attempt) {
  if (!Exists(paths.pending_manifest(attempt, 0))) (void)RemoveTree(paths.attempt(attempt));
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
