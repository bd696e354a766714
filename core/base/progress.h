#pragma once
/// How long work tells its caller how far it is.

#include <cstdint>
#include <functional>

namespace cairn::core {

/// Told of progress at most every 50 ms from the calling thread; return false to cancel.
using Progress = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

}  // namespace cairn::core
