// The disk space that the files of a store occupy.

#include "tools/common/disk_usage.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>

namespace cairn::tools {

Result<DiskUsage> MeasureDiskUsage(const std::string& directory) {
  namespace fs = std::filesystem;
  DiskUsage usage;
  std::error_code error;
  fs::recursive_directory_iterator entries(directory, fs::directory_options::none, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    struct stat status{};
    if (lstat(entries->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const auto bytes = static_cast<uint64_t>(status.st_size);
    usage.file_bytes += bytes;
    usage.allocated_bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    if (entries->path().parent_path().filename() == "segments") usage.segment_file_bytes += bytes;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Fail(SystemError(error.value(), "listing the files of the store", directory));
  }
  return usage;
}

}  // namespace cairn::tools
