#pragma once
/// GPUDirect Storage: whether this machine has it.

#include "kv/error.h"

namespace cairn::cuda {

/// Success if cuFile's library is there, its driver opens and copies straight between storage and
/// the GPU. kUnimplemented: this build was made without cufile.h. kFailedPrecondition: the library
/// is missing, its driver does not open, or it would only copy through host memory as Cairn does
/// itself; says which. Looks at each call, and needs a GPU. Threads: one at a time.
Result<void> FindGpuDirectStorage();

}  // namespace cairn::cuda
