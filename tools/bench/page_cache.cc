// Eviction of files from the page cache.

#include "tools/bench/page_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace cairn::tools {

Result<void> EvictFromPageCache(const std::string& directory) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator entries(directory, error);
  for (; !error && entries != std::filesystem::recursive_directory_iterator();
       entries.increment(error)) {
    if (!entries->is_regular_file(error)) continue;
    const int file = open(entries->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return Fail(SystemError(errno, "opening to evict", entries->path().string()));
    // Dirty pages cannot be evicted, so they are written back first.
    int failed = fsync(file) != 0 ? errno : 0;
    if (failed == 0) failed = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    if (failed != 0) return Fail(SystemError(failed, "evicting", entries->path().string()));
  }
  if (error) return Fail(SystemError(error.value(), "listing files to evict", directory));
  return {};
}

}  // namespace cairn::tools
