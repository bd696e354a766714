#pragma once
/// Meeting at an address of rank 0.

#include <string>
#include <vector>

#include "core/ranks/internal/rendezvous_record.h"

namespace cairn::core::internal {

/// The two sides of Meet (rendezvous.h) over TCP: rank 0 serves, all others join.
Result<std::vector<std::string>> ServeTcpMeeting(const Endpoint& place, const Party& party,
                                                 const std::vector<std::string>& pieces,
                                                 Deadline deadline);
Result<std::vector<std::string>> JoinTcpMeeting(const Endpoint& place, const Party& party,
                                                const std::vector<std::string>& pieces,
                                                Deadline deadline);
/// The address of this host from which `place.host` is reached. Sends nothing.
Result<std::string> LocalAddressTowards(const Endpoint& place);
/// The first address that `host` stands for and that is of this host, in digits.
/// kUnavailable: there is none.
Result<std::string> AddressOfThisHost(const std::string& host);

}  // namespace cairn::core::internal
