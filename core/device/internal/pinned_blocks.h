#pragma once
/// Page-locked blocks that payload of devices passes through: one bounded pool for the process.

#include <memory>

#include "core/tensor/chunk_grid.h"
#include "kv/block_pool.h"

namespace cairn::core::internal {

/// As large as a chunk by default, whatever blocks a store uses for host memory.
inline constexpr uint64_t kPinnedBlockBytes = kDefaultChunkBytes;

/// The pool; made at the first call, kept until the process ends. Its budget
/// is CAIRN_PINNED_BYTES from the environment (kInvalidArgument: no number, or less than a block),
/// by default half of the host's memory, or of what its control group may take, divided by the
/// ranks on the host, as torchrun, Open MPI, MPICH or Slurm tell them. Errors as FindDeviceBackend.
/// Threads: safe.
Result<std::shared_ptr<kv::BlockPool>> PinnedBlocks();

}  // namespace cairn::core::internal
