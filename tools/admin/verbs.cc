#include "tools/admin/verbs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

#include "tools/common/address.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {

namespace fs = std::filesystem;

Argument StoreArgument(std::string& store) {
  return Required("STORE", &store, "Directory of the store");
}

Argument StepArgument(std::string& address) {
  return Required("STORE[@STEP]", &address, "STORE or STORE@STEP; the latest step without @STEP");
}

Argument IntoArgument(uint64_t& step) {
  return RequiredOption("--into", "STEP", &step, "Number of the new step");
}

Argument OverwriteArgument(bool& overwrite) {
  return Flag("--overwrite", overwrite, "Replace the new step atomically if it exists");
}

Argument JsonArgument(bool& json) { return Flag("--json", json, "Print JSON"); }

Argument RateArgument(std::string& rate) {
  return Option("--max-rate", "BYTES", &rate, "Limit of payload per second, such as 100M");
}

std::vector<Argument> Joined(std::vector<Argument> first, std::vector<Argument> more) {
  std::ranges::move(more, std::back_inserter(first));
  return first;
}

Result<uint64_t> ParseRate(const std::string& rate) {
  if (rate.empty()) return 0;
  CAIRN_TRY_ASSIGN(const uint64_t bytes_per_second, ParseBytes(rate));
  if (bytes_per_second > 0) return bytes_per_second;
  return Fail(ErrorCode::kInvalidArgument,
              "--max-rate must be at least one byte per second; write a rate such as 100M");
}

Result<std::string> ParseStore(const std::string& text, std::string_view why) {
  CAIRN_TRY_ASSIGN(Address address, ParseAddress(text));
  if (!address.step) return std::move(address.store);
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}; write {} without a step", why, ShellWord(address.store)));
}

Result<std::unique_ptr<core::CheckpointStore>> OpenExisting(const std::string& store,
                                                            const kv::StoreOptions& options) {
  CAIRN_TRY(core::CheckpointStore::Open(store, kv::OpenMode::kRead, options));
  return core::CheckpointStore::Open(store, kv::OpenMode::kWrite, options);
}

namespace {

/// Returns the pid of another process that has the directory open, as each reader has; nothing:
/// none is known. Processes of other users are examined only by root.
std::optional<std::string> FindReader(const fs::path& directory) {
  std::error_code ignored;  // processes end, and other users' are not readable
  const std::string own = fmt::format("{}", ::getpid());
  for (fs::directory_iterator process("/proc", ignored), end; !ignored && process != end;
       process.increment(ignored)) {
    const std::string pid = process->path().filename().string();
    if (pid == own || !std::isdigit(static_cast<unsigned char>(pid.front()))) continue;
    std::error_code failed;
    for (fs::directory_iterator file(process->path() / "fd", failed); !failed && file != end;
         file.increment(failed)) {
      std::error_code unknown;
      if (fs::equivalent(file->path(), directory, unknown)) return pid;
    }
  }
  return std::nullopt;
}

}  // namespace

Result<kv::StoreOptions> GraceOptions(const std::string& store, bool now) {
  kv::StoreOptions options;
  if (!now) return options;
  options.grace = std::chrono::milliseconds(0);
  const auto reader = FindReader(AddressDirectory(store));
  if (!reader) return options;
  return Fail(
      Error{.code = ErrorCode::kFailedPrecondition,
            .message = fmt::format("process {} has the store open: end it, or omit --now to "
                                   "keep its files for the grace period",
                                   *reader),
            .file = store});
}

Argument NowArgument(bool& now) {
  return Flag("--now", now,
              "Free the space at once; refused if another process of this host has the store open. "
              "Otherwise the files remain for 60 s, for readers that still use them, and the next "
              "save, delete, close or open for writing after that removes them");
}

std::string FreedText(uint64_t freed_bytes, uint64_t waiting_bytes) {
  const auto grace = std::chrono::duration<double>(kv::StoreOptions().grace);
  const std::string freed = fmt::format("{} free now", HumanBytes(freed_bytes));
  if (waiting_bytes == 0) return freed;
  return fmt::format("{}, {} at the next change after the grace period of {}", freed,
                     HumanBytes(waiting_bytes), HumanSeconds(grace.count()));
}

}  // namespace cairn::tools
