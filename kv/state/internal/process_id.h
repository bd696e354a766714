#pragma once
/// The id of this process, without a system call.

#include <sys/types.h>

namespace cairn::kv::internal {

/// Returns what getpid returns, also in a forked child. For checks that are made for each record.
/// Threads: any.
pid_t ProcessId();

}  // namespace cairn::kv::internal
