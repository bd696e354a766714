#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Starts threads.

#include <functional>
#include <thread>

#include "kv/base/error.h"

namespace cairn::kv {

/// Runs `work` on a new thread, which blocks all signals, so that other threads handle the
/// program's signals. `what` completes the error text "the system has not enough threads for ...".
/// `work` must not throw. kResourceExhausted: there are no more threads, or not enough memory.
Result<std::thread> StartThread(const char* what, std::move_only_function<void()> work);

}  // namespace cairn::kv
