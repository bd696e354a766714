#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Reports the progress of a long operation to its caller.

#include <cstdint>
#include <functional>

namespace cairn::core {

/// Called at most once per 50 ms, on the thread that called the operation. Returns false to cancel
/// it.
using Progress = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

}  // namespace cairn::core
