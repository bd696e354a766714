#include "kv/io/internal/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "kv/io/internal/block_io.h"
#include "kv/io/internal/fault_point.h"

namespace cairn::kv::internal {
namespace {

/// Opens with O_DIRECT if `*direct` is set, and without it if that is refused; then clears
/// `*direct`.
FileDescriptor OpenMaybeDirect(const FilePlace& place, int flags, bool* direct) {
  const auto open = [&](int more_flags) {
    return FileDescriptor(RetryInterrupted([&] {
      return ::openat(place.directory, place.name.c_str(), flags | more_flags | O_CLOEXEC, 0666);
    }));
  };
  if (*direct) {
    FileDescriptor file = open(O_DIRECT);
    // EINVAL: the file system does not support O_DIRECT (tmpfs). With O_CREAT|O_EXCL it may have
    // created the file nevertheless.
    if (file.is_open() || errno != EINVAL) return file;
    *direct = false;
    if (flags & O_CREAT) ::unlinkat(place.directory, place.name.c_str(), 0);
  }
  return open(0);
}

/// Returns the alignment that direct I/O on the file requires of memory.
uint64_t MemoryAlign(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status;
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0 && status.stx_dio_mem_align > 0) {
    return std::min<uint64_t>(status.stx_dio_mem_align, kDirectAlignBytes);
  }
#endif
  return kDirectAlignBytes;
}

}  // namespace

Result<File> File::OpenRead(const FilePlace& place, bool direct, const char* fault_point) {
  CAIRN_TRY(PassPoint(fault_point, "cannot open for reading", place.path));
  File file;
  file.direct_ = direct;
  // O_NONBLOCK: the open of a FIFO would wait for a writer. It has no effect on regular files.
  file.fd_ = OpenMaybeDirect(place, O_RDONLY | O_NONBLOCK, &file.direct_);
  if (!file.fd_.is_open()) return Fail(SystemError(errno, "cannot open for reading", place.path));
  struct stat status;
  if (::fstat(file.fd(), &status) != 0) return Fail(SystemError(errno, "cannot stat", place.path));
  if (!S_ISREG(status.st_mode)) {
    return Fail(ErrorCode::kDataLoss, "this is not a regular file", place.path);
  }
  if (file.direct_) file.memory_align_bytes_ = MemoryAlign(file.fd());
  file.path_ = place.path;
  return file;
}

Result<File> File::Create(const FilePlace& place, bool direct) {
  File file;
  file.direct_ = direct;
  file.fd_ = OpenMaybeDirect(place, O_RDWR | O_CREAT | O_EXCL, &file.direct_);
  if (!file.fd_.is_open()) {
    Error error = SystemError(errno, "cannot create", place.path);
    if (errno == EEXIST) error.code = ErrorCode::kConflict;
    return Fail(std::move(error));
  }
  if (file.direct_) file.memory_align_bytes_ = MemoryAlign(file.fd());
  file.path_ = place.path;
  return file;
}

Result<void> File::DropDirect() {
  const int flags = ::fcntl(fd(), F_GETFL);
  if (flags < 0 || ::fcntl(fd(), F_SETFL, flags & ~O_DIRECT) < 0) {
    return Fail(SystemError(errno, "cannot switch to buffered I/O", path_));
  }
  direct_ = false;
  return {};
}

Result<uint64_t> File::SizeBytes() const {
  struct stat status;
  if (::fstat(fd(), &status) != 0) return Fail(SystemError(errno, "cannot stat", path_));
  return static_cast<uint64_t>(status.st_size);
}

Result<void> File::ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const {
  const IoCompletion read = TransferNow({.fd = fd(),
                                         .data = target.data(),
                                         .length_bytes = target.size(),
                                         .offset_bytes = offset_bytes});
  const uint64_t end_bytes = offset_bytes + read.done_bytes;
  if (read.error_number != 0) {
    return Fail(SystemError(read.error_number, "cannot read", path_).WithOffset(end_bytes));
  }
  if (read.done_bytes == target.size()) return {};
  return Fail(ErrorCode::kDataLoss,
              fmt::format("the file ends {} bytes too early", target.size() - read.done_bytes),
              path_, end_bytes);
}

Result<void> File::Append(std::span<const std::byte> bytes, const char* fault_point) {
  CAIRN_TRY(PassPoint(fault_point, "cannot write", path_));
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Fail(SystemError(errno, "cannot write", path_));
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Result<void> File::Truncate(uint64_t size_bytes) {
  const auto size = static_cast<off_t>(size_bytes);
  if (RetryInterrupted([&] { return ::ftruncate(fd(), size); }) != 0) {
    return Fail(SystemError(errno, "cannot set the size", path_));
  }
  return {};
}

Result<void> File::Sync(const char* fault_point) {
  CAIRN_TRY(PassPoint(fault_point, "cannot sync", path_));
  if (RetryInterrupted([&] { return ::fdatasync(fd()); }) == 0) return {};
  return Fail(SystemError(errno, "cannot sync", path_));
}

Result<void> MakeDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    return Fail(SystemError(errno, "cannot create the directory", path));
  }
  return {};
}

Result<void> SyncDirectory(const FilePlace& place, const char* fault_point) {
  CAIRN_TRY(PassPoint(fault_point, "cannot sync the directory", place.path));
  const FileDescriptor directory(RetryInterrupted([&] {
    return ::openat(place.directory, place.name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }));
  if (!directory.is_open())
    return Fail(SystemError(errno, "cannot open the directory", place.path));
  const int failed = RetryInterrupted([&] { return ::fsync(directory.get()); }) != 0 ? errno : 0;
  // Some network file systems cannot sync a directory and return EINVAL. Nothing else can be done.
  if (failed != 0 && failed != EINVAL) {
    return Fail(SystemError(failed, "cannot sync the directory", place.path));
  }
  return {};
}

Result<void> RemoveFile(const FilePlace& place) {
  if (::unlinkat(place.directory, place.name.c_str(), 0) != 0 && errno != ENOENT) {
    return Fail(SystemError(errno, "cannot remove", place.path));
  }
  return {};
}

bool Exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

Result<std::vector<std::byte>> ReadWholeFile(const FilePlace& place, uint64_t limit_bytes) {
  CAIRN_TRY_ASSIGN(const File file, File::OpenRead(place, /*direct=*/false, nullptr));
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, file.SizeBytes());
  if (size_bytes > limit_bytes) {
    return Fail(
        ErrorCode::kDataLoss,
        fmt::format("the file has {} bytes, more than the limit of {}", size_bytes, limit_bytes),
        place.path);
  }
  std::vector<std::byte> bytes(size_bytes);
  CAIRN_TRY(file.ReadAt(0, bytes));
  return bytes;
}

std::string ParentOfPath(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string AbsolutePath(std::string path) {
  if (path.starts_with('/')) return path;
  std::error_code failed;
  const std::filesystem::path working_directory = std::filesystem::current_path(failed);
  if (failed) return path;
  while (path.starts_with("./")) path.erase(0, path.find_first_not_of('/', 1));
  return path.empty() || path == "." ? working_directory.string()
                                     : (working_directory / path).string();
}

}  // namespace cairn::kv::internal
