#pragma once
/// One verdict for all ranks: where one of them failed, all return its error.

#include "core/ranks/communicator.h"

namespace cairn::core {

/// Collective: every rank tells how it fared. Where one failed, all get the same error: that of the
/// lowest rank that failed, with "rank 2: " before its message. Where the communicator fails, a
/// rank gets its own error if it has one, else the communicator's. Cost: 8 bytes from each rank;
/// after a failure its error to all.
Result<void> AgreeOnStatus(Communicator& communicator, const Result<void>& own);

/// The same with a short text that rank 0 gives and all get; a rank that failed keeps its own
/// error, others get it as text.
Result<std::string> BroadcastStatus(Communicator& communicator, const Result<std::string>& own);

}  // namespace cairn::core
