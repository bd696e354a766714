#pragma once
/// The record that ranks exchange at a rendezvous, and the place where they do.
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
    kTimedOut = 4,   // one piece, who did not come in time
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
struct Endpoint {
  std::string directory;  // of files; empty: host and port
  std::string host;
  std::string port;
};
/// kInvalidArgument: neither "file:///directory" nor "tcp://host:port" (an IPv6 address in
/// brackets).
Result<Endpoint> ParseEndpoint(std::string_view url);

}  // namespace cairn::core::internal
