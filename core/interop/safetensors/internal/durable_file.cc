#include "core/interop/safetensors/internal/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

namespace cairn::core::internal {

Result<void> SyncDirectory(const std::string& directory) {
  const kv::FileDescriptor file(kv::RetryInterrupted(
      [&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!file.is_open()) return Fail(SystemError(errno, "cannot open the directory", directory));
  if (kv::RetryInterrupted([&] { return ::fsync(file.get()); }) == 0) return {};
  return Fail(SystemError(errno, "cannot sync the directory", directory));
}

Result<std::unique_ptr<DurableFile>> DurableFile::Create(const std::string& path) {
  std::unique_ptr<DurableFile> file(new DurableFile());
  std::error_code failed;
  file->path_ = std::filesystem::absolute(path, failed).string();
  if (failed) return Fail(SystemError(failed.value(), "cannot resolve the path", path));
  const auto target = std::filesystem::status(path, failed);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "this is not a regular file, and would be replaced by one; name "
                                 "another file",
                      .file = path});
  }
  uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    return Fail(SystemError(errno, "cannot get random bytes"));
  }
  // O_EXCL: an existing file belongs to another process, perhaps on another machine.
  std::string temporary = fmt::format("{}.{}.tmp", file->path_, number);
  file->file_ = kv::FileDescriptor(kv::RetryInterrupted(
      [&] { return ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
  if (!file->file_.is_open()) return Fail(SystemError(errno, "cannot create the file", temporary));
  file->temporary_ = std::move(temporary);
  return file;
}

DurableFile::~DurableFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<void> DurableFile::Write(std::span<const std::byte> bytes) {
  CAIRN_CHECK(file_.is_open());
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Fail(SystemError(errno, "cannot write", temporary_));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Result<void> DurableFile::Finish() {
  CAIRN_CHECK(file_.is_open());
  // Sync the bytes before the rename, so that no crash leaves the name on an incomplete file.
  if (kv::RetryInterrupted([&] { return ::fsync(file_.get()); }) != 0)
    return Fail(SystemError(errno, "cannot sync", temporary_));
  if (const int failed = file_.Close()) {
    return Fail(SystemError(failed, "cannot close", temporary_));
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return Fail(SystemError(errno, "cannot rename the finished file", path_));
  }
  temporary_.clear();
  const auto parent = std::filesystem::path(path_).parent_path();
  return SyncDirectory(parent.empty() ? "." : parent.string());
}

}  // namespace cairn::core::internal
