// Selects the implementation for the endpoint.

#include "core/ranks/internal/rendezvous.h"

#include "core/ranks/internal/file_rendezvous.h"
#include "core/ranks/internal/tcp_rendezvous.h"

namespace cairn::core::internal {

Result<std::vector<std::string>> Meet(const Endpoint& endpoint, const Party& party,
                                      const std::vector<std::string>& messages, Deadline deadline) {
  if (!endpoint.directory.empty()) return MeetByFile(endpoint.directory, party, messages, deadline);
  return party.rank == 0 ? ServeTcpMeeting(endpoint, party, messages, deadline)
                         : JoinTcpMeeting(endpoint, party, messages, deadline);
}

Result<void> Forget(const Endpoint& endpoint, const Party& party) {
  if (endpoint.directory.empty()) return {};
  return ForgetFiles(endpoint.directory, party);
}

}  // namespace cairn::core::internal
