// The writer's lock with fcntl.

#include "kv/internal/io/lock_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <set>

#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {
namespace {

Mutex held_mutex;

// Never destroyed, because locks may outlive static objects.
std::set<std::string>& HeldPaths() CAIRN_REQUIRES(held_mutex) {
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
  const MutexLock lock(held_mutex);
  // Resolve the path of the directory, because the file itself may not exist yet.
  const size_t slash = path.rfind('/');
  char* real =
      ::realpath(slash == std::string::npos ? "." : path.substr(0, slash).c_str(), nullptr);
  if (real == nullptr) return Fail(SystemError(errno, "cannot resolve the directory of", path));
  std::string identity = fmt::format("{}/{}", real, path.substr(slash + 1));
  std::free(real);
  // Check this before opening the file: closing a second descriptor would release the lock.
  if (HeldPaths().contains(identity)) return Fail(Conflict(path, "this process"));

  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.is_open()) return Fail(SystemError(errno, "cannot open the writer's lock", path));
  struct flock wanted = {};
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  if (::fcntl(file.get(), F_SETLK, &wanted) != 0) {
    const int failed = errno;
    struct flock holder = wanted;
    const bool known = ::fcntl(file.get(), F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK;
    if (failed != EACCES && failed != EAGAIN) {
      return Fail(SystemError(failed, "cannot lock", path));
    }
    return Fail(Conflict(path, known && holder.l_pid > 0 ? fmt::format("process {}", holder.l_pid)
                                                         : std::string("another process")));
  }
  HeldPaths().insert(identity);
  return std::unique_ptr<LockFile>(new LockFile(std::move(file), std::move(identity)));
}

LockFile::~LockFile() {
  const MutexLock lock(held_mutex);
  (void)file_.Close();  // while the mutex is held: the next holder must open the file after this
  HeldPaths().erase(identity_);
}

}  // namespace cairn::kv::internal
