#pragma once
/// GPUDirect Storage: files that GPUs read and write directly, through NVIDIA's cuFile.

#include <string>

#include "kv/error.h"

namespace cairn::cuda {

/// Succeeds if GPUs can read and write files of `directory` directly now: the cuFile library is
/// installed and its driver opens, the driver serves this file system without copies through host
/// memory, and what a GPU wrote to a trial file was read back. Needs a GPU.
///
/// kUnimplemented: this build was made without cufile.h. kFailedPrecondition: one of the above is
/// missing; the message states which. kInvalidArgument: the environment variable CAIRN_GDS is not
/// "auto" (the default), "on" (use cuFile even where it copies through host memory) or "off".
/// kDataLoss: the bytes that were read back differ. Threads: safe.
Result<void> FindGpuDirectStorage(const std::string& directory);

}  // namespace cairn::cuda
