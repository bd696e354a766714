#pragma once
/// Queues of reads and writes of files.

#include <cstdint>
#include <memory>

#include "kv/error.h"
#include "kv/io_queue.h"

namespace cairn::kv::internal {

/// Returns a queue for requests with `fd`. Uses io_uring if `uring` is set and the kernel allows
/// it, otherwise a pool of threads. Requires `depth > 0`.
std::unique_ptr<IoQueue> MakeFileQueue(bool uring, uint32_t depth);

}  // namespace cairn::kv::internal
