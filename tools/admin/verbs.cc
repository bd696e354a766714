#include "tools/admin/verbs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <filesystem>
#include <iterator>
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

/// States which readers FindReader knows.
std::string CheckedText(core::CheckpointStore& store) {
  if (store.kv().storage().local_files() == nullptr) {
    return "not checked: readers of this storage are not known";
  }
  if (::geteuid() == 0) {
    return "checked: no other process of this host has the store open; not checked: other hosts";
  }
  return "checked: no other process of this user has the store open; not checked: other users and "
         "other hosts";
}

}  // namespace

Argument NowArgument(bool& now) {
  return Flag("--now", now,
              "Free the space at once; refused if another process has the store open. Only root "
              "sees processes of other users, and nobody those of other hosts and readers of "
              "buckets: the output states what was checked. Otherwise the files remain for 60 s, "
              "for readers that still use them, and the next save, delete, close or open for "
              "writing after that removes them");
}

Result<std::unique_ptr<core::CheckpointStore>> OpenToFree(const std::string& store, bool now,
                                                          bool dry_run) {
  if (const auto reader = now ? FindReader(AddressDirectory(store)) : std::nullopt) {
    return Fail(
        Error{.code = ErrorCode::kFailedPrecondition,
              .message = fmt::format("process {} has the store open: end it, or omit --now to "
                                     "keep its files for the grace period",
                                     *reader),
              .file = store});
  }
  if (!dry_run) return OpenExisting(store);
  kv::StoreOptions options;
  if (now) options.grace = std::chrono::milliseconds(0);
  return core::CheckpointStore::Open(store, kv::OpenMode::kRead, options);
}

Result<FreedSpace> FreeSpace(core::CheckpointStore& store, bool now, FreedSpace space) {
  if (now) space.checked = CheckedText(store);
  if (now && store.kv().writable()) {
    if (const auto reader = FindReader(AddressDirectory(store.kv().directory()))) {
      space.checked = fmt::format(
          "process {} has opened the store in the meantime: the files remain for the grace period",
          *reader);
    } else {
      CAIRN_TRY_ASSIGN(const uint64_t removed_bytes, store.kv().RemoveWaiting());
      space.freed_bytes += removed_bytes;
      space.waiting_bytes = 0;
    }
  }
  CAIRN_TRY(store.Close());
  return space;
}

std::string FreedText(const FreedSpace& space) {
  const auto grace = std::chrono::duration<double>(kv::StoreOptions().grace);
  std::string text = fmt::format("{} free now", HumanBytes(space.freed_bytes));
  if (space.waiting_bytes > 0) {
    text += fmt::format(", {} at the next change after the grace period of {}",
                        HumanBytes(space.waiting_bytes), HumanSeconds(grace.count()));
  }
  return space.checked.empty() ? text : text + "\n" + space.checked;
}

}  // namespace cairn::tools
