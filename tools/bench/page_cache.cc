// Eviction of files from the page cache.

#include "tools/bench/page_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace cairn::tools {

namespace {

/// Writes back everything that is dirty in the file system of `directory`, because dirty pages
/// cannot be evicted. One fsync per file would send as many flushes to the device, after which it
/// is slow for a while.
Result<void> WriteBack(const std::string& directory) {
  const int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Fail(SystemError(errno, "opening to sync", directory));
  const int failed = syncfs(folder) != 0 ? errno : 0;
  close(folder);
  if (failed != 0) return Fail(SystemError(failed, "syncing the file system", directory));
  return {};
}

}  // namespace

Result<void> EvictFromPageCache(const std::string& directory) {
  CAIRN_TRY(WriteBack(directory));
  std::error_code error;
  std::filesystem::recursive_directory_iterator entries(directory, error);
  for (; !error && entries != std::filesystem::recursive_directory_iterator();
       entries.increment(error)) {
    if (!entries->is_regular_file(error)) continue;
    const int file = open(entries->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return Fail(SystemError(errno, "opening to evict", entries->path().string()));
    const int failed = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    if (failed != 0) return Fail(SystemError(failed, "evicting", entries->path().string()));
  }
  if (error) return Fail(SystemError(error.value(), "listing files to evict", directory));
  return {};
}

}  // namespace cairn::tools
