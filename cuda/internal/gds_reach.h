#pragma once
/// Which part of cuFile's driver a file needs, so that its bytes pass host memory by. cuFile does
/// not tell: where it cannot, it copies.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "kv/error.h"

namespace cairn::cuda::internal {

/// What stores the bytes of a file.
struct FileStorage {
  uint64_t file_system = 0;  // type, as statfs tells it
  dev_t device = 0;          // as stat tells it
};

/// Of an open file. kUnavailable: the system does not tell.
Result<FileStorage> FindStorage(int fd);

/// Bits of cuFile's CUfileDriverStatusFlags_t, any of which serves the storage: by the type of the
/// file system, and for ext4 and xfs by the disks below. kFailedPrecondition: none does; says why.
/// `sysfs` is "/sys" but in tests.
Result<unsigned> FlagsThatServe(const FileStorage& storage, const std::string& sysfs = "/sys");

}  // namespace cairn::cuda::internal
