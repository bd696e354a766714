#pragma once
/// What the files of a store occupy.

#include <cstdint>
#include <string>

#include "kv/error.h"

namespace cairn::tools::internal {

struct DiskUsage {
  uint64_t file_bytes = 0;          // sum of the files' lengths
  uint64_t allocated_bytes = 0;     // blocks that the file system gave, as `du` counts
  uint64_t segment_file_bytes = 0;  // the part of file_bytes below segments/
};

/// Files that vanish meanwhile (a writer works beside us) are not counted. kUnavailable: a folder
/// that cannot be read.
Result<DiskUsage> MeasureDiskUsage(const std::string& directory);

}  // namespace cairn::tools::internal
