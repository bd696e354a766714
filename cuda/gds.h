#pragma once
/// GPUDirect Storage: files that GPUs read and write themselves, through NVIDIA's cuFile.

#include <memory>
#include <string>

#include "core/device/device.h"
#include "kv/error.h"

namespace cairn::cuda {

/// Success if files of `directory` take that way now: cuFile's library is there and its driver
/// opens, it serves this file system without copies through host memory, and what was written to a
/// file of the trial was read back. kUnimplemented: this build was made without cufile.h.
/// kFailedPrecondition: says which of these is missing. kInvalidArgument: CAIRN_GDS is none of
/// "auto" (the default), "on" (also where cuFile itself copies through host memory) and "off".
/// kDataLoss: other bytes came back. Needs a GPU. Threads: safe.
Result<void> FindGpuDirectStorage(const std::string& directory);

namespace internal {

/// DeviceBackend::OpenFile. `device`: whose memory a trial uses.
Result<std::unique_ptr<core::DeviceFile>> OpenCuFile(core::DeviceBackend& backend, int device,
                                                     int fd, const std::string& path,
                                                     core::DeviceBackend::FileUse use);

}  // namespace internal
}  // namespace cairn::cuda
