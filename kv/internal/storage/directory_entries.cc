// readdir and inotify.

#include "kv/internal/storage/directory_entries.h"

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>

#include "kv/file_descriptor.h"

namespace cairn::kv::internal {
namespace {

/// Follows symbolic links, so that a folder of a store may be a link to another disk.
bool IsDirectory(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
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

Result<DirectoryEntries> ReadEntries(const std::string& path) {
  DirectoryEntries entries;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) {
    if (errno == ENOENT) return entries;
    return Fail(SystemError(errno, "cannot list the directory", path));
  }
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      const bool is_directory =
          entry->d_type == DT_DIR ||
          (entry->d_type != DT_REG && IsDirectory(fmt::format("{}/{}", path, name)));
      (is_directory ? entries.directories : entries.files).emplace_back(name);
    }
    errno = 0;  // stat may have set it
  }
  const int failed = errno;
  ::closedir(directory);
  if (failed != 0) return Fail(SystemError(failed, "cannot list the directory", path));
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
