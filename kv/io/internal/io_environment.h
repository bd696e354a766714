#pragma once
/// Variables of the environment, and the I/O options of a store that was opened without any: the
/// defaults, changed by the environment.
///
///   CAIRN_IO_BLOCK_BYTES   4096 ... 1073741824   IoOptions::block_bytes
///   CAIRN_IO_DEPTH         1 ... 1024            IoOptions::queue_depth
///   CAIRN_IO_ENGINE        uring | threads       IoOptions::uring
///   CAIRN_IO_DIRECT        0 | 1                 IoOptions::direct
///   CAIRN_THREADS          1 ... 1024            WorkerThreads
///
/// No other file reads these variables.

#include <cstdint>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/options.h"

namespace cairn::kv::internal {

/// Returns the value of the variable; "" if it is not set.
std::string_view EnvironmentVariable(const char* name);
/// Returns the number in the variable, or `otherwise` if it is not set or empty. kInvalidArgument:
/// it is not an integer from `least` to `most`.
Result<uint64_t> IntegerVariable(const char* name, uint64_t least, uint64_t most,
                                 uint64_t otherwise);

// The length of a request has 32 bits in io_uring. Deeper queues do not make any device faster.
inline constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMaxQueueDepth = 1024;

/// Returns `defaults`, changed by the variables that are set and not empty. kInvalidArgument: a
/// variable has a value that is not listed above.
Result<IoOptions> IoOptionsFromEnvironment(IoOptions defaults);

/// Returns CAIRN_THREADS, or `otherwise` if it is not set. Has the errors of
/// IoOptionsFromEnvironment, which checks this variable too.
Result<uint64_t> WorkerThreadsFromEnvironment(uint64_t otherwise);

}  // namespace cairn::kv::internal
