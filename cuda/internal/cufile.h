#pragma once
/// cuFile, opened at run time: its library and driver, what the driver serves, and files that are
/// registered with it.

#include <memory>
#include <string>

#include "core/device/device.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// kUnimplemented: this build was made without cufile.h.
Result<void> CheckCuFileBuild();

/// Implements DeviceBackend::OpenFile. `device`: the GPU whose memory a trial uses. Threads: safe.
///
/// kUnimplemented: this build was made without cufile.h. kFailedPrecondition: cuFile is turned off,
/// missing or does not serve this file system, or a transfer of this file system failed earlier.
/// kInvalidArgument: CAIRN_GDS has an unknown value. kDataLoss: a trial read other bytes than it
/// wrote. kUnavailable, kResourceExhausted: a trial failed.
Result<std::unique_ptr<core::DeviceFile>> OpenCuFile(core::DeviceBackend& backend, int device,
                                                     int fd, const std::string& path,
                                                     core::DeviceBackend::FileUse use);

/// Implements FindGpuDirectStorage with memory of the current device. Threads: safe.
Result<void> TryOutDirectory(core::DeviceBackend& backend, const std::string& directory);

}  // namespace cairn::cuda::internal
