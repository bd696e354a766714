#pragma once
/// Lets ranks that know only a common endpoint exchange short messages.

#include <string>
#include <vector>

#include "core/ranks/internal/rendezvous_record.h"

namespace cairn::core::internal {

/// Collective over all ranks. messages[j] of rank i is element i of the result of rank j. Requires
/// one message per rank. Returns by the deadline, except that the resolution of a host name may
/// take longer. kUnavailable: ranks did not arrive. kFailedPrecondition: refused (see ConnectGloo).
Result<std::vector<std::string>> Meet(const Endpoint& endpoint, const Party& party,
                                      const std::vector<std::string>& messages, Deadline deadline);

/// Removes what `Meet` has left at the endpoint. Rank 0 calls it once Meet has returned on all
/// ranks.
Result<void> Forget(const Endpoint& endpoint, const Party& party);

}  // namespace cairn::core::internal
