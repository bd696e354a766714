#pragma once
/// The queue of core on CUDA.

#include <memory>

#include "core/device/device.h"
#include "cuda/internal/device_heap.h"

namespace cairn::cuda::internal {

/// Device memory: three buffers of 16 MiB, and what PageDigester needs. Page-locked host memory:
/// the tables of copy jobs. Allocated at first use and kept until the destructor.
/// kResourceExhausted, kUnavailable: the streams or events cannot be created.
Result<std::unique_ptr<core::DeviceQueue>> MakeQueue(std::shared_ptr<const DeviceHeap> heap);

}  // namespace cairn::cuda::internal
