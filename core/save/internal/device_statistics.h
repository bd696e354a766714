#pragma once
/// Computes the statistics of tensors in device memory, on their device.

#include "core/device/device.h"
#include "core/save/internal/save_plan.h"

namespace cairn::core::internal {

/// Sets the statistics of the plan's chunks on the device of `queue`; not of those that are equal
/// to the base, if `base_has_statistics`. Requires that the chunks are digested. Waits for the
/// device. Memory on the device: 16 MiB if a tensor is strided. kResourceExhausted: there is not so
/// much memory; kUnavailable: the device failed.
Result<void> ComputeDeviceStatistics(DeviceBackend& backend, DeviceQueue& queue, SavePlan& plan,
                                     bool base_has_statistics);

}  // namespace cairn::core::internal
