#pragma once
/// One value of each rank, on every rank.

#include <span>
#include <type_traits>
#include <vector>

#include "core/ranks/communicator.h"

namespace cairn::core::internal {

/// Collective: element i is what rank i gave as `mine`. Errors are the communicator's.
template <typename T>
Result<std::vector<T>> AllGatherValues(Communicator& communicator, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(communicator.world_size()));
  std::vector<ByteTarget> targets;
  for (T& each : all) targets.push_back(std::as_writable_bytes(std::span(&each, 1)));
  CAIRN_TRY(communicator.AllGather(std::as_bytes(std::span(&mine, 1)), targets));
  return all;
}

}  // namespace cairn::core::internal
