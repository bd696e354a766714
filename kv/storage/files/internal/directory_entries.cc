// readdir and inotify.

#include "kv/storage/files/internal/directory_entries.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>

#include "kv/io/file_descriptor.h"

namespace cairn::kv::internal {
namespace {

/// Returns whether a directory, or a link to one if links count, has this name.
bool IsDirectory(int parent, const char* name, DirectoryLinks links) {
  const int flags = links == DirectoryLinks::kFollow ? 0 : AT_SYMLINK_NOFOLLOW;
  struct stat status;
  return ::fstatat(parent, name, &status, flags) == 0 && S_ISDIR(status.st_mode);
}

/// Reads the pending events. Returns whether one of them is about a name that does not begin with
/// '.', or about the directory itself.
bool HasNameEvent(int fd) {
  alignas(inotify_event) char buffer[4096];
  static_assert(sizeof(buffer) >= sizeof(inotify_event) + NAME_MAX + 1);
  const ssize_t got = ::read(fd, buffer, sizeof(buffer));
  for (ssize_t at = 0; at < got;) {
    inotify_event event;
    std::memcpy(&event, buffer + at, sizeof(event));
    const char* name = buffer + at + sizeof(event);  // if event.len > 0
    if (event.len == 0 || name[0] != '.') return true;
    at += static_cast<ssize_t>(sizeof(event) + event.len);
  }
  return false;
}

}  // namespace

Result<DirectoryEntries> ReadEntries(const FilePlace& place, DirectoryLinks links) {
  DirectoryEntries entries;
  const int flags = links == DirectoryLinks::kIgnore ? O_NOFOLLOW : 0;
  FileDescriptor file(RetryInterrupted([&] {
    return ::openat(place.directory, place.name.c_str(),
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
  }));
  if (!file.is_open() && (errno == ENOENT || errno == ENOTDIR)) return entries;
  DIR* const directory = file.is_open() ? ::fdopendir(file.get()) : nullptr;
  if (directory == nullptr)
    return Fail(SystemError(errno, "cannot list the directory", place.path));
  const int fd = file.Release();  // `directory` owns it
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const char* const name = entry->d_name;
    if (std::string_view(name) != "." && std::string_view(name) != "..") {
      const bool is_known = entry->d_type == DT_DIR || entry->d_type == DT_REG;
      if (is_known ? entry->d_type == DT_DIR : IsDirectory(fd, name, links)) {
        entries.directories.emplace_back(name);
      } else if (is_known || !IsDirectory(fd, name, DirectoryLinks::kFollow)) {
        entries.files.emplace_back(name);
      }
    }
    errno = 0;  // stat may have set it
  }
  const int failed = errno;
  ::closedir(directory);
  if (failed != 0) return Fail(SystemError(failed, "cannot list the directory", place.path));
  return entries;
}

bool AwaitName(const std::string& path, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  const FileDescriptor events(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!events.is_open()) return false;
  if (::inotify_add_watch(events.get(), path.c_str(),
                          IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR) < 0) {
    return false;
  }
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return true;
    pollfd watched = {.fd = events.get(), .events = POLLIN, .revents = 0};
    const int wait_ms = static_cast<int>(std::min<int64_t>(left.count(), INT_MAX));
    if (::poll(&watched, 1, wait_ms) > 0 && HasNameEvent(events.get())) return true;
  }
}

}  // namespace cairn::kv::internal
