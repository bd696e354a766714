#pragma once
/// Exchanges messages through rank 0, which listens on an address.

#include <string>
#include <vector>

#include "core/ranks/internal/rendezvous_record.h"

namespace cairn::core::internal {

/// Implement Meet (rendezvous.h): rank 0 calls ServeTcpMeeting, all other ranks JoinTcpMeeting.
Result<std::vector<std::string>> ServeTcpMeeting(const Endpoint& endpoint, const Party& party,
                                                 const std::vector<std::string>& messages,
                                                 Deadline deadline);
Result<std::vector<std::string>> JoinTcpMeeting(const Endpoint& endpoint, const Party& party,
                                                const std::vector<std::string>& messages,
                                                Deadline deadline);
/// Returns the address of this host on the route to `endpoint.host`. Sends nothing. kUnavailable:
/// there is no route.
Result<std::string> LocalAddressTowards(const Endpoint& endpoint);
/// Returns, in numeric form, the first address that `host` resolves to and that belongs to this
/// host. kUnavailable: there is none.
Result<std::string> AddressOfThisHost(const std::string& host);

}  // namespace cairn::core::internal
