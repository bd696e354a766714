#pragma once
/// Gathers one value per rank on every rank.

#include <span>
#include <type_traits>
#include <vector>

#include "core/ranks/communicator.h"

namespace cairn::core::internal {

/// Collective. Element i of the result is `mine` of rank i. Returns the errors of the communicator.
/// Copies the bytes of `T`: all ranks run the same program.
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
