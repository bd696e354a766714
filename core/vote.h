#pragma once
/// One verdict for all ranks.

#include "core/communicator.h"

namespace cairn::core {

/// Succeeds if `mine` succeeded on every rank. Else every rank gets the same error: that of the
/// lowest rank that failed, with "rank 2: " before its message. A collective: a rank that failed
/// locally votes too, instead of leaving the others to wait. Errors of the communicator as it gives
/// them. Cost: 8 bytes from each rank; where one failed, its error to all.
Result<void> Vote(Communicator& communicator, const Result<void>& mine);

}  // namespace cairn::core
