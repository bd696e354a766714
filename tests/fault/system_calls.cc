// The functions of the C library, with an observer.

#undef _FORTIFY_SOURCE  // its inline versions have the same names

#include "tests/fault/system_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <functional>
#include <string_view>
#include <utility>

namespace cairn::testing {
namespace {

std::recursive_mutex observed_calls;
std::atomic<CallObserver*> observer = nullptr;

bool IsBelow(std::string_view path, std::string_view root) {
  return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

std::string PathOf(int fd) {
  std::array<char, PATH_MAX> text;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), text.data(), text.size());
  return length < 0 ? "" : std::string(text.data(), static_cast<size_t>(length));
}

std::string PathAt(int directory, const char* path) {
  // Without an observer, nobody uses the path, and the test may have no memory for it.
  if (observer.load() == nullptr) return {};
  if (path[0] == '/' || directory == AT_FDCWD) return path;
  return PathOf(directory) + "/" + path;
}

struct FileIdentity {
  uint64_t inode = 0;
  bool is_directory = false;
  uint64_t size_bytes = 0;
};

FileIdentity Identify(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return {};
  return {status.st_ino, S_ISDIR(status.st_mode), static_cast<uint64_t>(status.st_size)};
}
FileIdentity Identify(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return {};
  return {status.st_ino, S_ISDIR(status.st_mode), static_cast<uint64_t>(status.st_size)};
}

FileChange ChangeOf(FileChange::Kind kind, std::string path, const FileIdentity& file) {
  return {.kind = kind,
          .path = std::move(path),
          .to = {},
          .inode = file.inode,
          .is_directory = file.is_directory,
          .offset_bytes = 0,
          .bytes = {},
          .size_bytes = file.size_bytes};
}

/// Runs `perform(is_short)`, unless the observer lets the call fail; then `after(observer, result)`
/// if the call has succeeded. `path` is only computed if there is an observer.
template <typename Perform, typename After>
auto Observe(SystemCall call, const std::function<std::string()>& path, const Perform& perform,
             const After& after) -> decltype(perform(false)) {
  if (observer.load() == nullptr) return perform(false);
  const std::lock_guard lock(observed_calls);
  CallObserver* const current = observer.load();
  if (current == nullptr) return perform(false);
  const std::string name = path();
  if (!IsBelow(name, current->root())) return perform(false);
  const CallFault fault = current->Before(call, name);
  if (fault.error_number != 0) {
    errno = fault.error_number;
    return -1;
  }
  const auto result = perform(fault.is_short);
  if (result < 0) return result;
  const int error_number = errno;
  after(*current, name, result);
  errno = error_number;
  return result;
}

void IgnoreResult(CallObserver&, const std::string&, ssize_t) {}

int Open(int directory, const char* path, int flags, mode_t mode) {
  const std::string name = PathAt(directory, path);
  const bool is_new =
      (flags & O_CREAT) != 0 && observer.load() != nullptr && Identify(name).inode == 0;
  return Observe(
      SystemCall::kOpen, [&] { return name; },
      [&](bool) { return static_cast<int>(::syscall(SYS_openat, directory, path, flags, mode)); },
      [&](CallObserver& to, const std::string&, int fd) {
        if (is_new) to.After(ChangeOf(FileChange::Kind::kCreate, name, Identify(fd)));
        if (!is_new && (flags & O_TRUNC) != 0) {
          to.After(ChangeOf(FileChange::Kind::kResize, name, Identify(fd)));
        }
      });
}

ssize_t Read(int fd, void* bytes, size_t length, const off_t* offset) {
  return Observe(
      SystemCall::kRead, [&] { return PathOf(fd); },
      [&](bool is_short) {
        const size_t wanted = is_short && length > 1 ? length / 2 : length;
        return offset == nullptr ? ::syscall(SYS_read, fd, bytes, wanted)
                                 : ::syscall(SYS_pread64, fd, bytes, wanted, *offset);
      },
      IgnoreResult);
}

ssize_t Write(int fd, const void* bytes, size_t length, const off_t* offset) {
  uint64_t begin = 0;
  return Observe(
      SystemCall::kWrite, [&] { return PathOf(fd); },
      [&](bool is_short) {
        const size_t wanted = is_short && length > 1 ? length / 2 : length;
        if (observer.load() != nullptr) {
          const bool appends = (::fcntl(fd, F_GETFL) & O_APPEND) != 0;
          begin = appends             ? Identify(fd).size_bytes
                  : offset == nullptr ? static_cast<uint64_t>(::lseek(fd, 0, SEEK_CUR))
                                      : static_cast<uint64_t>(*offset);
        }
        return offset == nullptr ? ::syscall(SYS_write, fd, bytes, wanted)
                                 : ::syscall(SYS_pwrite64, fd, bytes, wanted, *offset);
      },
      [&](CallObserver& to, const std::string& path, ssize_t done) {
        FileChange change = ChangeOf(FileChange::Kind::kWrite, path, Identify(fd));
        change.offset_bytes = begin;
        change.bytes.assign(static_cast<const char*>(bytes), static_cast<size_t>(done));
        to.After(std::move(change));
      });
}

int Sync(int fd, int64_t number) {
  return Observe(
      SystemCall::kSync, [&] { return PathOf(fd); },
      [&](bool) { return static_cast<int>(::syscall(number, fd)); },
      [&](CallObserver& to, const std::string& path, int) {
        to.After(ChangeOf(FileChange::Kind::kSync, path, Identify(fd)));
      });
}

/// Runs a call that changes the size of the open file.
template <typename Perform>
int Resize(SystemCall call, int fd, const Perform& perform) {
  return Observe(
      call, [&] { return PathOf(fd); }, [&](bool) { return static_cast<int>(perform()); },
      [&](CallObserver& to, const std::string& path, int) {
        to.After(ChangeOf(FileChange::Kind::kResize, path, Identify(fd)));
      });
}

/// Runs a call that changes one name (`to` is empty) or two.
template <typename Perform>
int ChangeNames(SystemCall call, FileChange::Kind kind, const std::string& path,
                const std::string& to_path, const Perform& perform) {
  FileIdentity file;
  return Observe(
      call, [&] { return path; },
      [&](bool) {
        if (observer.load() != nullptr) file = Identify(path);
        return static_cast<int>(perform());
      },
      [&](CallObserver& to, const std::string&, int) {
        FileChange change =
            ChangeOf(kind, path, kind == FileChange::Kind::kCreate ? Identify(path) : file);
        change.to = to_path;
        to.After(std::move(change));
      });
}

bool CanFail(SystemCall call, int error_number) {
  switch (error_number) {
    case EMFILE:
      return call == SystemCall::kOpen;
    case EINTR:
      return call == SystemCall::kOpen || call == SystemCall::kRead || call == SystemCall::kWrite ||
             call == SystemCall::kSync;
    case ENOSPC:
    case EDQUOT:
      return call != SystemCall::kRead && call != SystemCall::kRemove;
    case 0:  // a short transfer
      return call == SystemCall::kRead || call == SystemCall::kWrite;
    default:
      return true;
  }
}

}  // namespace

const char* SystemCallName(SystemCall call) {
  static constexpr std::array kNames = {"open",     "read", "write",  "sync",   "allocate",
                                        "truncate", "link", "rename", "remove", "make directory"};
  return kNames[static_cast<size_t>(call)];
}

CallObserver::CallObserver(std::string root) : root_(std::move(root)) { observer = this; }

CallObserver::~CallObserver() {
  const std::lock_guard lock(observed_calls);
  observer = nullptr;
}

FailingCalls::FailingCalls(std::string root, uint64_t n, int error_number, Extent extent)
    : CallObserver(std::move(root)), n_(n), error_number_(error_number), extent_(extent) {}

CallFault FailingCalls::Before(SystemCall call, const std::string& path) {
  if (!CanFail(call, error_number_)) return {};
  ++count_;
  if (count_ < n_ || (count_ > n_ && extent_ == Extent::kOnce)) return {};
  if (!fired_) fired_at_ = std::string(SystemCallName(call)) + " " + path.substr(root().size());
  fired_ = true;
  return {.error_number = error_number_, .is_short = error_number_ == 0};
}

}  // namespace cairn::testing

using cairn::testing::ChangeNames;
using cairn::testing::PathAt;
using cairn::testing::SystemCall;
using Kind = cairn::testing::FileChange::Kind;

// NOLINTBEGIN(cert-dcl50-cpp): these are the functions of the C library.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return cairn::testing::Open(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return cairn::testing::Open(AT_FDCWD, path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return cairn::testing::Open(directory, path, flags, mode);
}

ssize_t read(int fd, void* bytes, size_t length) {
  return cairn::testing::Read(fd, bytes, length, nullptr);
}
ssize_t pread(int fd, void* bytes, size_t length, off_t offset) {
  return cairn::testing::Read(fd, bytes, length, &offset);
}
ssize_t pread64(int fd, void* bytes, size_t length, off_t offset) {
  return cairn::testing::Read(fd, bytes, length, &offset);
}
ssize_t write(int fd, const void* bytes, size_t length) {
  return cairn::testing::Write(fd, bytes, length, nullptr);
}
ssize_t pwrite(int fd, const void* bytes, size_t length, off_t offset) {
  return cairn::testing::Write(fd, bytes, length, &offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t length, off_t offset) {
  return cairn::testing::Write(fd, bytes, length, &offset);
}

int fsync(int fd) { return cairn::testing::Sync(fd, SYS_fsync); }
int fdatasync(int fd) { return cairn::testing::Sync(fd, SYS_fdatasync); }

int ftruncate(int fd, off_t size) noexcept {
  return cairn::testing::Resize(SystemCall::kTruncate, fd,
                                [&] { return ::syscall(SYS_ftruncate, fd, size); });
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
  return cairn::testing::Resize(SystemCall::kAllocate, fd,
                                [&] { return ::syscall(SYS_fallocate, fd, mode, offset, length); });
}

int link(const char* from, const char* to) noexcept {
  return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int linkat(int from_directory, const char* from, int to_directory, const char* to,
           int flags) noexcept {
  return ChangeNames(
      SystemCall::kLink, Kind::kLink, PathAt(from_directory, from), PathAt(to_directory, to),
      [&] { return ::syscall(SYS_linkat, from_directory, from, to_directory, to, flags); });
}
int rename(const char* from, const char* to) noexcept {
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
int renameat(int from_directory, const char* from, int to_directory, const char* to) noexcept {
  return ChangeNames(
      SystemCall::kRename, Kind::kRename, PathAt(from_directory, from), PathAt(to_directory, to),
      [&] { return ::syscall(SYS_renameat2, from_directory, from, to_directory, to, 0); });
}
int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
int unlinkat(int directory, const char* path, int flags) noexcept {
  return ChangeNames(SystemCall::kRemove, Kind::kRemove, PathAt(directory, path), "",
                     [&] { return ::syscall(SYS_unlinkat, directory, path, flags); });
}
int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int mkdir(const char* path, mode_t mode) noexcept { return mkdirat(AT_FDCWD, path, mode); }
int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  return ChangeNames(SystemCall::kMakeDirectory, Kind::kCreate, PathAt(directory, path), "",
                     [&] { return ::syscall(SYS_mkdirat, directory, path, mode); });
}

}  // extern "C"
// NOLINTEND(cert-dcl50-cpp)
