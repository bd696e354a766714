#pragma once
/// A trial of direct file access: checks that a file contains what a device has written to it.

#include <functional>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// Writes 1 MiB of device memory to an unnamed file in `directory`, and reads it back through the
/// host and into the device. `open` opens the file for devices; it does not take ownership of `fd`.
///
/// kFailedPrecondition: the file system does not support direct I/O. kDataLoss: the bytes that were
/// read back differ. kResourceExhausted: the device or the file system is full. Also returns errors
/// of `open` and of the file operations.
Result<void> TryOutFile(
    core::DeviceBackend& backend, int device, const std::string& directory,
    const std::function<Result<std::unique_ptr<core::DeviceFile>>(int fd)>& open);

}  // namespace cairn::cuda::internal
