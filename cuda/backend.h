#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The CUDA layer as the device backend of core.

#include "core/device/device.h"

namespace cairn::cuda {

/// Returns the GPUs of this process. The driver is looked up at run time. kFailedPrecondition:
/// there is no GPU, no driver, or the driver is too old; the message states which. Threads: safe.
Result<core::DeviceBackend*> FindBackend();

/// Makes core::FindDeviceBackend return this backend. Call it once, early in a program; it does not
/// touch a GPU.
inline void Register() { core::SetDeviceBackend(&FindBackend); }

}  // namespace cairn::cuda
