#pragma once
/// One verdict for all ranks: where one of them failed, all return its error.

#include "core/communicator.h"

namespace cairn::core::internal {

/// Collective: every rank tells how it fared. Returns this rank's own error if it has one, else
/// that of the lowest rank that has, which it names; or an error of the communicator.
Result<void> Vote(Communicator& communicator, const Result<void>& own);

/// The same with a short text that rank 0 gives and all get.
Result<std::string> VoteAndTell(Communicator& communicator, const Result<std::string>& own);

}  // namespace cairn::core::internal
