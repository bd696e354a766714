#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Checks of arguments that every communicator makes before it sends anything.

#include <span>

#include "core/ranks/communicator.h"
#include "kv/base/error.h"

namespace cairn::core {

/// kInvalidArgument: `root` is not a rank of a world of `world_size`. `operation` is the name of
/// the call.
Result<void> CheckRoot(const char* operation, int root, int world_size);

/// kInvalidArgument: there is not one range per rank, or the range of this rank, which is copied to
/// or from a range of `own_bytes`, has another length.
Result<void> CheckRanges(const char* operation, std::span<const ByteView> ranges, int rank,
                         int world_size, uint64_t own_bytes);
Result<void> CheckRanges(const char* operation, std::span<const ByteTarget> ranges, int rank,
                         int world_size, uint64_t own_bytes);
/// kInvalidArgument: `sent` or `received` does not have one range per rank, or the two ranges of
/// this rank differ in length.
Result<void> CheckAllToAll(std::span<const ByteView> sent, std::span<const ByteTarget> received,
                           int rank, int world_size);

}  // namespace cairn::core
