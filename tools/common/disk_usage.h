#pragma once
/// The disk space that the files of a store occupy.

#include <cstdint>
#include <string>

#include "kv/base/error.h"

namespace cairn::tools {

struct DiskUsage {
  uint64_t file_bytes = 0;          // sum of the lengths of the files
  uint64_t allocated_bytes = 0;     // allocated blocks, as `du` counts them
  uint64_t segment_file_bytes = 0;  // the part of file_bytes below segments/
};

/// Files that a concurrent writer removes during the scan are not counted. kUnavailable: a folder
/// cannot be read.
Result<DiskUsage> MeasureDiskUsage(const std::string& directory);

}  // namespace cairn::tools
