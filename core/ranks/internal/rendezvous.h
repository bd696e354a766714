#pragma once
/// Lets ranks that know only a common endpoint exchange short messages: by files in a directory
/// that they share, or through rank 0, which listens on an address.
///
/// Record, in files and in messages, of u64 and texts (message_codec.h):
///   magic "CRNR" | length of the record | kind | rank | world size | run id
///   number of messages, and each message | XXH3-64 of everything before it
/// The first 16 bytes contain the length, which is checked before anything is allocated.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::core::internal {

using Deadline = std::chrono::steady_clock::time_point;
/// Returns the time until `deadline`, rounded up; 0 if it has passed.
std::chrono::milliseconds TimeLeft(Deadline deadline);

inline constexpr uint64_t kMaxRunIdBytes = 128;
inline constexpr uint64_t kMaxRendezvousMessageBytes = 512;
inline constexpr uint64_t kRecordHeaderBytes = 16;

/// The record of one rank.
struct RendezvousRecord {
  enum class Kind : uint32_t {
    kHello = 1,     // messages[i] is for rank i
    kAnswer = 2,    // messages[i] is from rank i
    kRefusal = 3,   // one message: why this rank is refused
    kTimedOut = 4,  // one message: which ranks did not arrive in time
  };
  Kind kind = Kind::kHello;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string run_id;
  std::vector<std::string> messages;
};

/// Requires messages of at most kMaxRendezvousMessageBytes and a run ID of at most kMaxRunIdBytes.
std::string EncodeRecord(const RendezvousRecord& record);

/// The maximum length of a record among `world_size` ranks.
uint64_t MaxRecordBytes(int world_size);

/// Returns the length of the record that begins with `bytes`; nothing if they are fewer than
/// kRecordHeaderBytes. kDataLoss: this is not the beginning of a record, or the record is longer
/// than `max_bytes`.
Result<std::optional<uint64_t>> RecordLength(std::string_view bytes, uint64_t max_bytes);

/// kDataLoss: `bytes` are not exactly one record.
Result<RendezvousRecord> DecodeRecord(std::string_view bytes);

/// Identifies this process at a rendezvous.
struct Party {
  int rank = 0;
  int world_size = 1;
  std::string run_id;
};

/// Returns the ranks for which `present` is false, as "0, 4, 5".
std::string MissingRanks(const std::vector<bool>& present);

/// Where ranks meet.
struct Endpoint {
  std::string directory;  // if empty, host and port are used
  std::string host;
  std::string port;
};
/// Parses a URL. kInvalidArgument: it is neither "file:///directory" nor "tcp://host:port" (with an
/// IPv6 address in brackets).
Result<Endpoint> ParseEndpoint(std::string_view url);

/// Collective over all ranks. messages[j] of rank i is element i of the result of rank j. Requires
/// one message per rank. Returns by the deadline, except that the resolution of a host name may
/// take longer. kUnavailable: ranks did not arrive. kFailedPrecondition: refused (see ConnectGloo).
Result<std::vector<std::string>> Meet(const Endpoint& endpoint, const Party& party,
                                      const std::vector<std::string>& messages, Deadline deadline);

/// Removes what `Meet` has left at the endpoint. Rank 0 calls it once Meet has returned on all
/// ranks.
Result<void> Forget(const Endpoint& endpoint, const Party& party);

/// Implements Meet with one file per rank below `directory`.
Result<std::vector<std::string>> MeetByFile(const std::string& directory, const Party& party,
                                            const std::vector<std::string>& messages,
                                            Deadline deadline);

/// Removes the files of the run.
Result<void> ForgetFiles(const std::string& directory, const Party& party);

/// Implement Meet at an address: rank 0 calls ServeTcpMeeting, all other ranks JoinTcpMeeting.
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
