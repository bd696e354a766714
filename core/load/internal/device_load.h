#pragma once
/// Loads into device memory: read and verified in page-locked blocks, then copied to where the
/// targets are, while the next blocks are read.

#include <functional>
#include <span>

#include "core/base/progress.h"
#include "core/load/load_options.h"


namespace cairn::core::internal {

/// Fills host memory; see CheckpointStore::Load.
using HostLoad =
    std::function<Result<LoadReport>(std::span<const LoadRequest>, const Progress& progress)>;

/// True if one of the targets is in device memory.
bool HasDeviceTargets(std::span<const LoadRequest> requests);

/// Fills targets in device and in host memory; all of `requests` have been checked. Copies to a
/// device follow what the caller's `streams` hold (for devices that are not named, the default
/// stream's work); it returns when they are done, so that any stream may use the targets.
/// Page-locked memory: at most two windows of 128 MiB, of the process's pool; waits for one block
/// of it at least. Errors as HostLoad and DeviceQueue.
Result<LoadReport> LoadThroughBlocks(std::span<const LoadRequest> requests,
                                     std::span<const DeviceStream> streams,
                                     const Progress& progress, const HostLoad& host_load);

}  // namespace cairn::core::internal
