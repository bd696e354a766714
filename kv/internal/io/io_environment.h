#pragma once
/// The I/O options of a store that was opened without any: the defaults, changed by the
/// environment.
///
///   CAIRN_IO_BLOCK_BYTES   4096 ... 1073741824   IoOptions::block_bytes
///   CAIRN_IO_DEPTH         1 ... 1024            IoOptions::queue_depth
///   CAIRN_IO_ENGINE        uring | threads       IoOptions::uring
///   CAIRN_IO_DIRECT        0 | 1                 IoOptions::direct
///
/// Python and the programs thus use what `kv-bench tune` found. No other file reads these
/// variables.

#include "kv/error.h"
#include "kv/options.h"

namespace cairn::kv::internal {

/// Returns `defaults`, changed by the variables that are set and not empty. kInvalidArgument: a
/// variable has another value than those above.
Result<IoOptions> IoOptionsFromEnvironment(IoOptions defaults);

}  // namespace cairn::kv::internal
