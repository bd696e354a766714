#pragma once
/// Ranks that know nothing of each other but a place, and exchange a few bytes there.

#include <string>
#include <vector>

#include "core/ranks/internal/rendezvous_record.h"

namespace cairn::core::internal {

/// Rank i's pieces[j] is element i of what rank j gets. Every rank calls it, with one piece a rank.
/// Ends at the deadline at the latest, but for the look-up of a host's name.
/// kUnavailable: ranks that did not come. kFailedPrecondition: refused (see ConnectGloo).
Result<std::vector<std::string>> Meet(const Endpoint& place, const Party& party,
                                      const std::vector<std::string>& pieces, Deadline deadline);

/// Removes what `Meet` left at the place; for rank 0 to call once all ranks are through it.
Result<void> Forget(const Endpoint& place, const Party& party);

}  // namespace cairn::core::internal
