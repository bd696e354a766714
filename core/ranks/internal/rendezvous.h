#pragma once
/// Lets ranks that know only a common storage exchange one message each: each puts an object, and
/// reads the objects of the others.
///
/// Object "rendezvous/<run id>/rank-<rank>", of u64 and texts (message_codec.h):
///   rank | world size | message | XXH3-64 of everything before it

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/storage.h"

namespace cairn::core::internal {

using Deadline = std::chrono::steady_clock::time_point;
/// Returns the time until `deadline`, rounded up; 0 if it has passed.
std::chrono::milliseconds TimeLeft(Deadline deadline);

/// The contents of an object.
struct RendezvousRecord {
  uint64_t rank = 0;
  uint64_t world_size = 0;
  std::string message;
};
std::vector<std::byte> EncodeRecord(const RendezvousRecord& record);
/// kDataLoss: `bytes` are not exactly one record.
Result<RendezvousRecord> DecodeRecord(std::span<const std::byte> bytes);

/// Identifies this process at a rendezvous. The run ID is an element of the name of an object.
struct Party {
  int rank = 0;
  int world_size = 1;
  std::string run_id;
};

/// Returns the messages of all ranks, in the order of ranks. Collective over all ranks.
/// kUnavailable: ranks did not arrive by the deadline; names them. kFailedPrecondition: another
/// process was here as this rank, or another rank is of a world of another size. Other errors:
/// those of the storage.
Result<std::vector<std::string>> Meet(kv::Storage& storage, const Party& party,
                                      std::string_view message, Deadline deadline);

/// Removes the objects of the run. Rank 0 calls it once Meet has returned on all ranks.
Result<void> Forget(kv::Storage& storage, const Party& party);

}  // namespace cairn::core::internal
