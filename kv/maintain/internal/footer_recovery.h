#pragma once
/// Recovery of steps whose tables are lost, from the footers of segments (docs/format/recovery.md).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/options.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// One attempt at a step, as the footers of its segments describe it.
struct FooterAttempt {
  uint64_t step = 0;
  std::string attempt;
  int64_t created_unix_ns = 0;
  uint32_t world_size = 1;  // at least this: a rank that wrote no payload has no segment
  std::vector<uint64_t> segment_ids;
};

struct FooterRecovery {
  uint64_t first_generation = 0;  // the first recovered step's generation; the others follow
  /// Returns whether the attempt may be recovered. Its name is empty if its footer cannot be read.
  std::function<bool(const FooterAttempt&)> wants;
};

/// Returns whether a later attempt may succeed, so that the error does not prove a loss.
bool MayBeTemporary(const Error& error);

/// Returns the error of a rebuild that cannot determine whether an object is lost.
Error CannotTellLoss(Error error);

/// Writes a table for each step of which `wants` accepts an attempt and at least one tensor is
/// complete. The tables have the epoch of `state`. If it accepts several attempts at a step, the
/// one with the most bytes is taken, and of equal ones the last. Returns the entries, ascending by
/// step, and adds to `report` what they lack. kUnavailable, kResourceExhausted: the storage cannot
/// be listed, read or written. Memory: the records of two attempts. Cost: reads the headers,
/// footers and trailers of all segments.
Result<std::vector<StepEntry>> RecoverFromFooters(StoreState& state, const FooterRecovery& recovery,
                                                  RebuildReport& report);

}  // namespace cairn::kv::internal
