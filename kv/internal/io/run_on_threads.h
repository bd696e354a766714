#pragma once
/// The same work on several threads.

#include <cstddef>
#include <functional>

#include "kv/error.h"

namespace cairn::kv::internal {

/// Calls `work(i)` for i from 0 to `thread_count` - 1, each on a separate thread, 0 on that of the
/// caller, and waits for all. If the system has no more threads, it calls `work` on those that
/// there are: every call must take what is left of the work, and stop if another one has failed.
/// Returns the error of the lowest i. kResourceExhausted: there was not enough memory for `what`.
Result<void> RunOnThreads(size_t thread_count, const char* what,
                          const std::function<Result<void>(size_t i)>& work);

}  // namespace cairn::kv::internal
