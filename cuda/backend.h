#pragma once
/// The CUDA layer as core sees it.

#include "core/device/device.h"

namespace cairn::cuda {

/// The GPUs of this process. kFailedPrecondition: no GPU, no driver or one that is too old; says
/// which. The driver is looked for at run time. Threads: safe.
Result<core::DeviceBackend*> FindBackend();

/// Makes core find it. Once, early in a program; touches no GPU.
inline void Register() { core::SetDeviceBackend(&FindBackend); }

}  // namespace cairn::cuda
