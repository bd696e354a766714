// Checks and creates the buffers of a collective, and reports what it moved.

#include "core/collectives/internal/collective_call.h"

#include <fmt/format.h>

namespace cairn::core::internal {

Result<void> CollectiveCall::CheckBuffer() const {
  if (buffer_bytes >= 4 * uint64_t{world_size}) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("a buffer of {} bytes for {} ranks; it needs at least 4 per rank",
                          buffer_bytes, world_size));
}

Result<RoundMover> CollectiveCall::MakeMover(const std::set<int>& devices) const {
  return RoundMover::Make(carrier, buffer_bytes, devices, streams);
}

void CollectiveCall::Report(TransferReport moved, const RoundMover& mover) const {
  if (report == nullptr) return;
  moved.peak_buffer_bytes = mover.peak_bytes();
  *report = moved;
}

}  // namespace cairn::core::internal
