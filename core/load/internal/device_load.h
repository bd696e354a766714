#pragma once
/// Loads to device memory: bytes are read and verified in page-locked blocks, then copied to the
/// targets while the next blocks are read.

#include <functional>
#include <span>

#include "core/base/progress.h"
#include "core/load/load_options.h"

namespace cairn::core::internal {

/// Loads to host memory; see CheckpointStore::Load.
using HostLoad =
    std::function<Result<LoadReport>(std::span<const LoadRequest>, const Progress& progress)>;

/// True if one of the targets is in device memory.
bool HasDeviceTargets(std::span<const LoadRequest> requests);

/// Fills targets in device and in host memory. Requires that all of `requests` have been checked.
/// Copies to a device are ordered after the work in the caller's `streams` (for devices that are
/// not named, the default stream). The call returns when the copies are done, so that any stream
/// may use the targets. Page-locked memory: at most two windows of 128 MiB from the process's pool;
/// waits until at least one block is available. kUnavailable: a device has failed.
/// kResourceExhausted: there is no page-locked memory. Other errors: see `host_load`.
Result<LoadReport> LoadThroughBlocks(std::span<const LoadRequest> requests,
                                     std::span<const DeviceStream> streams,
                                     const Progress& progress, const HostLoad& host_load);

}  // namespace cairn::core::internal
