#pragma once
/// The capability of the cuFile driver that a file needs for transfers that bypass host memory.
/// cuFile does not report this: if the capability is missing, it copies through host memory.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "kv/error.h"

namespace cairn::cuda::internal {

/// The storage of a file.
struct FileStorage {
  uint64_t file_system = 0;  // f_type of statfs
  dev_t device = 0;          // st_dev of stat
};

/// Returns the storage of an open file. Fails as fstat and fstatfs do (SystemError).
Result<FileStorage> FindStorage(int fd);

/// Returns the bits of cuFile's CUfileDriverStatusFlags_t any of which serves the storage. They
/// depend on the type of the file system and, for ext4 and xfs, on the disks that it is on.
/// `sysfs` is "/sys" except in tests. kFailedPrecondition: no bit serves the storage; the message
/// states why.
Result<unsigned> FlagsThatServe(const FileStorage& storage, const std::string& sysfs = "/sys");

}  // namespace cairn::cuda::internal
