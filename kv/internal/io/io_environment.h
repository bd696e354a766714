#pragma once
/// The I/O settings of a store whose opener gave none: the defaults, as the environment changes

#include "kv/error.h"
#include "kv/options.h"
/// them.
///
///   CAIRN_IO_BLOCK_BYTES   4096 ... 1073741824   IoOptions::block_bytes
///   CAIRN_IO_DEPTH         1 ... 1024            IoOptions::queue_depth
///   CAIRN_IO_ENGINE        uring | threads       IoOptions::uring
///   CAIRN_IO_DIRECT        0 | 1                 IoOptions::direct
///
/// This is how Python and the programs take what `kv-bench tune` found. No other file reads these.


namespace cairn::kv::internal {

/// A variable that is unset or empty changes nothing. kInvalidArgument: one that is not as above.
Result<IoOptions> IoOptionsFromEnvironment();

}  // namespace cairn::kv::internal
