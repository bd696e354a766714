#pragma once
/// Page-locked blocks through which devices copy payload: one bounded pool per process.

#include <memory>

#include "core/tensor/chunk_grid.h"
#include "kv/io/block_pool.h"

namespace cairn::core::internal {

/// The default size of a chunk, independent of the blocks that a store uses for host memory.
inline constexpr uint64_t kPinnedBlockBytes = kDefaultChunkBytes;

/// Returns the pool, which the first call creates and which exists until the process ends. Its
/// budget is CAIRN_PINNED_BYTES from the environment. By default it is half of the host's memory,
/// or of the limit of its control group, divided by the number of ranks on the host, as set by
/// torchrun, Open MPI, MPICH or Slurm. kInvalidArgument: CAIRN_PINNED_BYTES is not a number, or
/// less than a block. Also returns the errors of FindDeviceBackend. Threads: safe.
Result<std::shared_ptr<kv::BlockPool>> PinnedBlocks();

}  // namespace cairn::core::internal
