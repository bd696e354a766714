// The writer's lock over fcntl.

#include "kv/internal/io/lock_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <set>

namespace cairn::kv::internal {
namespace {

std::mutex held_mutex;
std::set<std::string>&
HeldPaths() {  // guarded by held_mutex; never destroyed, as locks may outlive statics
  static auto& held = *new std::set<std::string>;
  return held;
}

Error Conflict(const std::string& path, std::string holder) {
  return Error{
      .code = ErrorCode::kConflict,
      .message = fmt::format(
          "{} has this store open for writing; close it there, or open for reading", holder),
      .file = path};
}

}  // namespace

Result<std::unique_ptr<LockFile>> LockFile::Acquire(const std::string& path) {
  std::lock_guard lock(held_mutex);
  // The directory's real path, since the file itself may not exist yet.
  const size_t slash = path.rfind('/');
  char* real =
      ::realpath(slash == std::string::npos ? "." : path.substr(0, slash).c_str(), nullptr);
  if (real == nullptr) return Fail(SystemError(errno, "cannot resolve the directory of", path));
  std::string identity = fmt::format("{}/{}", real, path.substr(slash + 1));
  std::free(real);
  // Looked up before opening: closing a second descriptor would drop the lock.
  if (HeldPaths().contains(identity)) return Fail(Conflict(path, "this process"));

  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Fail(SystemError(errno, "cannot open the writer's lock", path));
  struct flock wanted = {};
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  if (::fcntl(fd, F_SETLK, &wanted) != 0) {
    const int failed = errno;
    struct flock holder = wanted;
    const bool known = ::fcntl(fd, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK;
    ::close(fd);
    if (failed != EACCES && failed != EAGAIN) {
      return Fail(SystemError(failed, "cannot lock", path));
    }
    return Fail(Conflict(path, known && holder.l_pid > 0 ? fmt::format("process {}", holder.l_pid)
                                                         : std::string("another process")));
  }
  HeldPaths().insert(identity);
  return std::unique_ptr<LockFile>(new LockFile(fd, std::move(identity)));
}

LockFile::~LockFile() {
  std::lock_guard lock(held_mutex);
  ::close(fd_);
  HeldPaths().erase(identity_);
}

}  // namespace cairn::kv::internal
