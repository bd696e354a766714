#pragma once
/// Writes for which a file system has no space, and that are repeated when some was freed.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kv/base/error.h"

namespace cairn::kv::internal {

/// Frees space for a write that the file system has refused for lack of it. Returns nothing if any
/// was freed that the write may not have found: `seen`, 0 at first, counts what was freed before
/// its last attempt. Otherwise returns what to add to the error. Called on the thread that waits
/// for the write.
using FreeSpace = std::function<std::optional<std::string>(uint64_t& seen)>;

/// Returns the result of `write`, which is repeated as long as it fails for lack of space and
/// `free_space`, which may be null, frees some.
template <typename Write>
auto WithSpace(const FreeSpace& free_space, const Write& write) -> decltype(write()) {
  uint64_t seen = 0;
  while (true) {
    auto written = write();
    if (written || written.error().code != ErrorCode::kResourceExhausted || !free_space) {
      return written;
    }
    if (const auto waiting = free_space(seen)) {
      written.error().message += *waiting;
      return written;
    }
  }
}

}  // namespace cairn::kv::internal
