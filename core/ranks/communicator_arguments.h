#pragma once
/// What every communicator checks of its arguments before it sends anything.

#include <span>

#include "core/ranks/communicator.h"
#include "kv/error.h"

namespace cairn::core {

/// kInvalidArgument: `root` is no rank of a world of `world_size`. `operation` names the call.
Result<void> CheckRoot(const char* operation, int root, int world_size);

/// kInvalidArgument: not one range a rank, or this rank's own range is not as long as `own_bytes`,
/// which it is copied from or to.
Result<void> CheckRanges(const char* operation, std::span<const ByteView> ranges, int rank,
                         int world_size, uint64_t own_bytes);
Result<void> CheckRanges(const char* operation, std::span<const ByteTarget> ranges, int rank,
                         int world_size, uint64_t own_bytes);
/// The same for both lists of an AllToAll.
Result<void> CheckAllToAll(std::span<const ByteView> sent, std::span<const ByteTarget> received,
                           int rank, int world_size);

}  // namespace cairn::core
