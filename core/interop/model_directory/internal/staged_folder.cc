#include "core/interop/model_directory/internal/staged_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/interop/safetensors/internal/durable_file.h"
#include "kv/base/catch_exhaustion.h"

namespace cairn::core::internal {
namespace {

namespace fs = std::filesystem;

// A directory of other things must not be replaced because of a mistyped path.
constexpr std::array<const char*, 3> kModelFiles = {"config.json", "model_index.json",
                                                    "adapter_config.json"};

constexpr const char* kStoreFile = "CAIRN";  // in the directory of a store

Result<void> CheckReplaceable(const fs::path& path) {
  const auto conflict = [&](const char* why) {
    return Fail(Error{.code = ErrorCode::kConflict, .message = why, .file = path.string()});
  };
  bool is_model = false;
  std::error_code error;
  for (const char* name : kModelFiles) is_model = is_model || fs::exists(path / name, error);
  if (!is_model) return conflict("the directory is not that of a model, and is not replaced");
  fs::recursive_directory_iterator entries(path, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with('.')) {
      return conflict("the directory has hidden files, such as those of git, and is not replaced");
    }
    if (name == kStoreFile) {
      return conflict("the directory has a store of Cairn, and is not replaced");
    }
  }
  if (error) return Fail(SystemError(error.value(), "reading the directory", path.string()));
  return {};
}

}  // namespace

Result<std::unique_ptr<StagedFolder>> StagedFolder::Open(const std::string& path, bool overwrite) {
  std::unique_ptr<StagedFolder> folder(new StagedFolder());
  std::error_code error;
  // Through symbolic links, so that the directory is replaced and not the link to it.
  folder->path_ = fs::weakly_canonical(fs::absolute(path), error);
  if (error) return Fail(SystemError(error.value(), "cannot resolve the path", path));
  if (folder->path_.filename().empty()) folder->path_ = folder->path_.parent_path();
  CAIRN_TRY(folder->CheckTarget(overwrite));
  fs::create_directories(folder->path_.parent_path(), error);
  for (int number = 0; !error && folder->temporary_.empty(); ++number) {
    const fs::path unused = fmt::format("{}.{}{}.tmp", folder->path_.string(), ::getpid(),
                                        number == 0 ? "" : fmt::format(".{}", number));
    if (fs::create_directory(unused, error)) folder->temporary_ = unused;
  }
  if (!error) return folder;
  return Fail(SystemError(error.value(), "cannot create a directory for it", path));
}

Result<void> StagedFolder::CheckTarget(bool overwrite) {
  std::error_code error;
  if (!fs::exists(path_, error)) return {};
  if (!fs::is_directory(path_, error)) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "a model directory is a directory; this is a file",
                      .file = path_.string()});
  }
  const bool is_empty = fs::is_empty(path_, error);
  if (error) return Fail(SystemError(error.value(), "reading the directory", path_.string()));
  if (is_empty) return {};
  if (!overwrite) {
    return Fail(Error{.code = ErrorCode::kConflict,
                      .message = "the directory is not empty; give --overwrite to replace it",
                      .file = path_.string()});
  }
  replaces_ = true;
  return CheckReplaceable(path_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;  // the remaining files have temporary names
  kv::CleanUp([&] {
    if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  });
}

Result<void> StagedFolder::Commit() {
  std::error_code error;
  fs::recursive_directory_iterator entries(temporary_, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (entries->is_directory()) CAIRN_TRY(SyncDirectory(entries->path().string()));
  }
  if (error) return Fail(SystemError(error.value(), "reading the directory", temporary_.string()));
  CAIRN_TRY(SyncDirectory(temporary_.string()));
  if (replaces_) {
    CAIRN_TRY(Replace());
  } else if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return Fail(SystemError(errno, "cannot rename the finished directory", path_.string()));
  } else {
    temporary_.clear();
  }
  return SyncDirectory(path_.parent_path().string());
}

// Afterwards `temporary_` is the old directory, which the destructor removes.
Result<void> StagedFolder::Replace() {
  // It may be another directory by now.
  CAIRN_TRY(CheckReplaceable(path_));
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    return {};
  }
  if (errno != EINVAL && errno != ENOSYS) {
    return Fail(SystemError(errno, "cannot replace the directory", path_.string()));
  }
  const fs::path old = temporary_.string() + ".old";
  if (::rename(path_.c_str(), old.c_str()) != 0 ||
      ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return Fail(SystemError(errno, "cannot replace the directory", path_.string()));
  }
  temporary_ = old;
  return {};
}

}  // namespace cairn::core::internal
