// Chooses the way to meet.

#include "core/ranks/internal/rendezvous.h"

#include "core/ranks/internal/file_rendezvous.h"
#include "core/ranks/internal/tcp_rendezvous.h"

namespace cairn::core::internal {

Result<std::vector<std::string>> Meet(const Endpoint& place, const Party& party,
                                      const std::vector<std::string>& pieces, Deadline deadline) {
  if (!place.directory.empty()) return MeetByFile(place.directory, party, pieces, deadline);
  return party.rank == 0 ? ServeTcpMeeting(place, party, pieces, deadline)
                         : JoinTcpMeeting(place, party, pieces, deadline);
}

Result<void> Forget(const Endpoint& place, const Party& party) {
  if (place.directory.empty()) return {};
  return ForgetFiles(place.directory, party);
}

}  // namespace cairn::core::internal
