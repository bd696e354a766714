// `kv-admin check-storage`: runs the checks of storages and prints their results.

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kv/storage/open/open_storage.h"
#include "kv/storage/storage.h"
#include "tools/admin/storage_checks.h"
#include "tools/admin/verbs.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

struct CheckStorageCommand {
  std::string address;
  std::string second_address;  // another mount of the same directory; empty: the same address
  uint64_t rounds = 200;
  bool json = false;
};

/// How long another mount may take to show the new directory before it is said to be another one.
constexpr auto kFolderLag = std::chrono::seconds(30);

/// Whether these are two directories of one mounted file system, so that neither is a mount of the
/// other.
bool AreTwoDirectories(const std::string& a, const std::string& b) {
  struct stat first, second;
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino != second.st_ino;
}

/// How long one check takes, if a round is slow.
constexpr auto kCheckTime = std::chrono::seconds(30);

/// A new folder of a storage, opened once per address. The destructor removes it with what the
/// checks have left.
class CheckFolder {
 public:
  static Result<std::unique_ptr<CheckFolder>> Create(const CheckStorageCommand& command) {
    // The name below an address that is not valid may be valid.
    CAIRN_TRY(kv::OpenStorage(command.address));
    std::random_device random;
    const std::string name = fmt::format("/cairn-check-{:08x}{:08x}", random(), random());
    const std::string& second =
        command.second_address.empty() ? command.address : command.second_address;
    CAIRN_TRY_ASSIGN(auto first_storage, kv::OpenStorage(command.address + name));
    CAIRN_TRY_ASSIGN(auto second_storage, kv::OpenStorage(second + name));
    if ((first_storage->local_files() == nullptr) != (second_storage->local_files() == nullptr)) {
      return Fail(ErrorCode::kInvalidArgument, "the addresses are of different kinds");
    }
    std::unique_ptr<CheckFolder> folder(
        new CheckFolder(std::move(first_storage), std::move(second_storage)));
    if (folder->has_files()) CAIRN_TRY(folder->CreateDirectory(command));
    return folder;
  }

  ~CheckFolder() {
    // Nobody needs what remains, and a failure of the checks has been reported.
    if (has_files()) {
      if (!created_) return;
      std::error_code ignored;
      std::filesystem::remove_all(first_->address(), ignored);
    } else if (const auto names = first_->List("")) {
      for (const std::string& name : *names) (void)first_->Remove(name);
    }
  }
  CheckFolder(const CheckFolder&) = delete;
  CheckFolder& operator=(const CheckFolder&) = delete;

  bool has_files() const { return first_->local_files() != nullptr; }
  kv::Storage& first() { return *first_; }
  kv::Storage& second() { return *second_; }

 private:
  CheckFolder(std::shared_ptr<kv::Storage> first, std::shared_ptr<kv::Storage> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  Result<void> CreateDirectory(const CheckStorageCommand& command) {
    std::error_code error;
    if (!std::filesystem::create_directory(first_->address(), error)) {
      return Fail(
          SystemError(error.value(), "cannot create a directory for the checks", first_->address())
              .WithHint(Hint::kMakeDirectory));
    }
    created_ = true;
    const auto deadline = std::chrono::steady_clock::now() + kFolderLag;
    while (!std::filesystem::exists(second_->address(), error)) {
      if (CancelRequested()) return Fail(ErrorCode::kCancelled, "interrupted");
      if (std::chrono::steady_clock::now() > deadline ||
          !std::filesystem::exists(command.second_address, error) ||
          AreTwoDirectories(command.address, command.second_address)) {
        return Fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} is not another mount of {}: a directory that was created in "
                                "one does not exist in the other",
                                command.second_address, command.address));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return {};
  }

  const std::shared_ptr<kv::Storage> first_;
  const std::shared_ptr<kv::Storage> second_;
  bool created_ = false;  // the directory
};

struct Row {
  const char* check;
  CheckResult result;
};

Result<Row> RunCheck(const StorageCheck& check, CheckedStorages storages) {
  ProgressLine line(std::string(check.name) + ":", ProgressUnit::kCount);
  storages.progress = [&](uint64_t done, uint64_t total) { return line.Update(done, total); };
  storages.deadline = std::chrono::steady_clock::now() + kCheckTime;
  if (CancelRequested()) return Fail(ErrorCode::kCancelled, "interrupted");
  auto result = check.run(storages);
  if (result) return Row{check.name, *std::move(result)};
  const Error& error = result.error();
  if (error.code == ErrorCode::kCancelled || error.code == ErrorCode::kResourceExhausted) {
    return Fail(error);
  }
  return Row{check.name, CheckResult::Failed(error.ToString())};
}

Result<std::vector<Row>> RunChecks(const CheckStorageCommand& command) {
  CAIRN_TRY_ASSIGN(const auto folder, CheckFolder::Create(command));
  const CheckedStorages storages{
      .first = folder->first(), .second = folder->second(), .rounds = command.rounds};
  std::vector<Row> rows;
  for (const StorageCheck& check : StorageChecks()) {
    if (check.needs_files && !folder->has_files()) continue;
    CAIRN_TRY_ASSIGN(rows.emplace_back(), RunCheck(check, storages));
  }
  return rows;
}

void PrintChecksJson(const CheckStorageCommand& command, const std::vector<Row>& rows,
                     uint64_t failed, Output& out) {
  Json checks = Json::array();
  for (const Row& row : rows) {
    checks.push_back({{"check", row.check},
                      {"result", row.result.status},
                      {"detail", JsonText(row.result.detail)}});
  }
  const bool two = !command.second_address.empty();
  WriteJson(out, {{"address", JsonText(command.address)},
                  {"second_address", two ? Json(JsonText(command.second_address)) : Json(nullptr)},
                  {"failed", failed},
                  {"checks", std::move(checks)}});
}

void PrintChecks(const CheckStorageCommand& command, const std::vector<Row>& rows, uint64_t failed,
                 Output& out) {
  Table table(&out, {Left("CHECK"), Left("RESULT"), Flexible("DETAIL")});
  static const std::map<std::string_view, Style> kStyles = {
      {"ok", Style::kGreen}, {"note", Style::kYellow}, {"FAILED", Style::kRed}};
  for (const Row& row : rows) {
    const char* const status = row.result.status;
    table.Add({row.check, {status, kStyles.at(status)}, EscapeText(row.result.detail)});
  }
  table.Finish();
  if (failed > 0) {
    out.WriteLine(fmt::format("{} failed: do not keep a store here", Plural(failed, "check")));
  } else if (command.second_address.empty()) {
    out.WriteLine("every check passed; name a second mount to check what other machines see");
  } else {
    out.WriteLine("every check passed on both mounts");
  }
}

/// Exercises the storage below a new name, which it removes, and prints one row per check. Returns
/// kExitSuccess, or kExitDiffers if a guarantee is missing. kUnavailable, kNotFound: nothing can be
/// written there. kInvalidArgument: the addresses are not of the same directory. kCancelled: the
/// user has asked to stop.
Result<int> CheckStorage(const CheckStorageCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const auto rows, RunChecks(command));
  uint64_t failed = 0;
  for (const Row& row : rows) failed += row.result.has_failed() ? 1 : 0;
  (command.json ? PrintChecksJson : PrintChecks)(command, rows, failed, out);
  return failed == 0 ? kExitSuccess : kExitDiffers;
}

}  // namespace

Verb CheckStorageVerb() {
  const auto command = std::make_shared<CheckStorageCommand>();
  return {.name = "check-storage",
          .usage = "check-storage ADDRESS [ADDRESS2]",
          .summary = "Checks whether a storage has the guarantees that Cairn needs",
          .arguments = {Required("ADDRESS", &command->address,
                                 "Directory for stores, below which the checks write and remove "
                                 "a new directory"),
                        Positional("ADDRESS2", &command->second_address,
                                   "Another mount of the same directory, to check what other "
                                   "machines see"),
                        Option("--rounds", "N", &command->rounds,
                               "Rounds of each check (200); slow ones stop after 30 s",
                               std::pair<uint64_t, uint64_t>(1, 1'000'000)),
                        JsonArgument(command->json)},
          .examples = {"kv-admin check-storage runs",
                       "kv-admin check-storage /mnt/first/runs /mnt/second/runs"},
          .notes =
              "Exit status: 0 all checks passed; 1 a guarantee is missing; 2 the checks could "
              "not run.",
          .run = [command](Output& out) { return CheckStorage(*command, out); }};
}

}  // namespace cairn::tools
