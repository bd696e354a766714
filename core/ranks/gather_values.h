#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Gathers one value per rank on every rank.

#include <span>
#include <type_traits>
#include <vector>

#include "core/ranks/communicator.h"

namespace cairn::core {

/// Returns the value of each rank, in the order of ranks, received by `gather(mine, targets)`.
/// Exchanges the bytes of `T`: all ranks run the same program.
template <typename T, typename Gather>
Result<std::vector<T>> GatherValues(int world_size, const T& mine, const Gather& gather) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(world_size));
  std::vector<ByteTarget> targets;
  for (T& each : all) targets.push_back(std::as_writable_bytes(std::span(&each, 1)));
  CAIRN_TRY(gather(std::as_bytes(std::span(&mine, 1)), targets));
  return all;
}

/// Returns the value of each rank, sent with AllGather. Collective. Returns the errors of the
/// communicator.
template <typename T>
Result<std::vector<T>> AllGatherValues(Communicator& communicator, const T& mine) {
  return GatherValues(communicator.world_size(), mine,
                      [&](ByteView own, std::span<const ByteTarget> all) {
                        return communicator.AllGather(own, all);
                      });
}

}  // namespace cairn::core
