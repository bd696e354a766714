#pragma once
/// Ranks that know nothing of each other but a place, and exchange a few bytes there.
///
/// Record, in files and on the wire alike (integers little-endian):
///   u32 magic "CRNR" | u32 kind | u64 length of the record
///   u32 rank | u32 world size | u16 length, run id
///   u32 count, and for each piece u16 length, bytes
///   u64 XXH3-64 of everything before it
/// The length is known from the first 16 bytes and bounded before anything is allocated for it.

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"

namespace cairn::core::internal {

using Deadline = std::chrono::steady_clock::time_point;
/// Until `deadline`, rounded up; 0 once it has passed.
std::chrono::milliseconds TimeLeft(Deadline deadline);

inline constexpr uint64_t kMaxRunIdBytes = 128;
inline constexpr uint64_t kMaxPieceBytes = 512;
inline constexpr uint64_t kRecordHeaderBytes = 16;

/// One rank's words.
struct RendezvousRecord {
  enum class Kind : uint32_t {
    kHello = 1,    // pieces[i] is for rank i
    kAnswer = 2,   // pieces[i] is from rank i
    kRefusal = 3,  // one piece, why this rank may not come
    kGiveUp = 4,   // one piece, who did not come in time
  };
  Kind kind = Kind::kHello;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string run_id;
  std::vector<std::string> pieces;
};

/// Requires pieces of at most kMaxPieceBytes and a run id of at most kMaxRunIdBytes.
std::string EncodeRecord(const RendezvousRecord& record);

/// The longest record among `world_size` ranks.
uint64_t MaxRecordBytes(int world_size);

/// Length of the record that begins with `bytes`; nothing while they are fewer than
/// kRecordHeaderBytes. kDataLoss: not the begin of a record, or longer than `max_bytes`.
Result<std::optional<uint64_t>> RecordLength(std::string_view bytes, uint64_t max_bytes);

/// kDataLoss: `bytes` are not exactly one record.
Result<RendezvousRecord> DecodeRecord(std::string_view bytes);

/// Who meets.
struct Party {
  int rank = 0;
  int world_size = 1;
  std::string run_id;
};

/// "0, 4, 5": the numbers whose place in `present` is false.
std::string MissingRanks(const std::vector<bool>& present);

/// Where ranks meet, as a URL gives it.
struct Place {
  std::string directory;  // of files; empty: host and port
  std::string host;
  std::string port;
};
/// kInvalidArgument: neither "file:///directory" nor "tcp://host:port" (an IPv6 address in
/// brackets).
Result<Place> ParsePlace(std::string_view url);

/// Rank i's pieces[j] is element i of what rank j gets. Every rank calls it, with one piece a rank.
/// Ends at the deadline at the latest, but for the look-up of a host's name.
/// kUnavailable: ranks that did not come. kFailedPrecondition: refused (see ConnectGloo).
Result<std::vector<std::string>> Meet(const Place& place, const Party& party,
                                      const std::vector<std::string>& pieces, Deadline deadline);

/// Removes what `Meet` left at the place; for rank 0 to call once all ranks are through it.
Result<void> Forget(const Place& place, const Party& party);

/// The parts of `Meet`. Rank 0 serves on the TCP address; with files all ranks do the same.
Result<std::vector<std::string>> MeetByFile(const std::string& directory, const Party& party,
                                            const std::vector<std::string>& pieces,
                                            Deadline deadline);
Result<std::vector<std::string>> ServeTcpMeeting(const Place& place, const Party& party,
                                                 const std::vector<std::string>& pieces,
                                                 Deadline deadline);
Result<std::vector<std::string>> JoinTcpMeeting(const Place& place, const Party& party,
                                                const std::vector<std::string>& pieces,
                                                Deadline deadline);
/// The address of this host from which `place.host` is reached. Sends nothing.
Result<std::string> LocalAddressTowards(const Place& place);
/// The first address that `host` stands for and that is of this host, in digits.
/// kUnavailable: there is none.
Result<std::string> AddressOfThisHost(const std::string& host);

}  // namespace cairn::core::internal
