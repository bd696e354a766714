#pragma once
/// Whether what a device writes to a file of a directory is what is there afterwards.

#include <functional>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// Writes 1 MiB of device memory to a nameless file in `directory`, and reads it back by the host
/// and by the device. `open` makes a file the devices'. kFailedPrecondition: the directory takes no
/// such file, or `open` says so. kDataLoss: other bytes came back. Otherwise as
/// DeviceBackend::Allocate and DeviceFile.
Result<void> TryOutFile(
    core::DeviceBackend& backend, int device, const std::string& directory,
    const std::function<Result<std::unique_ptr<core::DeviceFile>>(int fd)>& open);

}  // namespace cairn::cuda::internal
