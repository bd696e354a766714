#pragma once
/// State dicts that pass between "a shard on each rank" and "whole on some": gather, broadcast,
/// distribute.
///
/// Counterparts of torch.distributed._state_dict_utils. Ranks of meshes are those of the
/// communicator. Ranks may have different keys (pipeline stages); ranks outside a tensor's mesh
/// hold nothing of it, and every rank of the mesh must have the key.
///
/// Memory: beside the result a call takes at most `buffer_bytes` of buffers for tensor bytes, plus
/// descriptions of the leaves (some 150 bytes a leaf, and what plain values take). A tensor that is
/// larger goes in pieces, small ones go together. Bytes that lie in one run on a side go from or
/// into the tensors themselves, without a buffer.
///
/// Devices: tensors of a state may lie on devices (TensorView::device), and results then lie there
/// too: a gathered tensor where its shards are, a tensor that the target has no memory for where
/// its view says; with cpu_offload all are in host memory. Over a communicator of that device
/// (Communicator::device) their bytes go from device to device, and buffers lie there; over others
/// they pass through host memory, page-locked where the system lets it. The tensors are read and
/// written after all that `streams` held when the call began; the call returns when its work is
/// done, so that what follows on any stream comes after it.
///
/// Two communicators: with `tensor_communicator` the bytes of tensors go over that one and all
/// else, so every vote, over the other: device memory over NCCL, say, and the rest over TCP. Both
/// have the same ranks in the same order.
///
/// Collectives: every rank calls them with the same options (but for `targets`, `memory`, `streams`
/// and `report`). A rank that finds its input bad says so in a vote, so that all ranks return the
/// same error, which names rank and key; nothing has been written then. Every wait is a call of the
/// communicator and ends within its deadline; after an error of the communicator itself
/// (kUnavailable) targets hold anything.
///
/// Threads: one call at a time for each communicator; states must not change during a call.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/device/device.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/state_target.h"

namespace cairn::core {

/// What one call moved, on this rank.
struct TransferReport {
  uint64_t sent_bytes = 0;         // of tensors, for others and once for itself
  uint64_t received_bytes = 0;     // of tensors, from other ranks
  uint64_t peak_buffer_bytes = 0;  // most that was in buffers at one time
  uint64_t round_count = 0;        // calls of the communicator that moved tensors
};

inline constexpr uint64_t kDefaultBufferBytes = 64 << 20;

struct GatherOptions {
  /// Also copy what is whole already, so that the result owns all of its tensors. Else those are
  /// borrowed from the local state, which must outlive the result.
  bool cpu_offload = false;
  /// Ranks that get the state, others get an empty dict; none named: all.
  std::vector<int> ranks_only;
  /// At least 4 a rank.
  uint64_t buffer_bytes = kDefaultBufferBytes;
  HostMemoryOptions memory;  // of the result
  /// Memory of the caller's for gathered tensors, by FQN: the result borrows it. On any device,
  /// whatever that of the shards, and with any strides; with cpu_offload too.
  std::map<std::string, TensorTarget, std::less<>> targets;
  Communicator* tensor_communicator = nullptr;  // null: the other one
  /// The caller's, on which tensors are made ready; the default stream of devices that none is of.
  std::vector<DeviceStream> streams;
  TransferReport* report = nullptr;  // filled if not null
};

/// The state of this rank with every sharded tensor whole, put together from all ranks' shards; of
/// replicas one is sent. Plain tensors and values are this rank's own.
///
/// kInvalidArgument on all ranks, beside what the top of this file says: a shard that does not fit
/// its sharding, or has no memory; explicit shards with gaps or overlaps; ranks that say different
/// things of one key; a rank in `ranks_only` that is none; a target of another dtype or shape; too
/// small a buffer.
/// kResourceExhausted: a rank has no memory for the result.
/// Cost: each byte goes once to every rank that wants it.
Result<HostState> GatherStateDict(const StateDict& state, Communicator& communicator,
                                  const GatherOptions& options = {});

struct BroadcastOptions {
  /// Leave out of the result what the full state lacks; else it stays as it is in the target.
  bool strict = false;
  /// Give every tensor of the full state memory of the result's, and leave the target's alone.
  bool cpu_offload = false;
  /// At least 4 a rank. Not used by DistributeStateDict.
  uint64_t buffer_bytes = kDefaultBufferBytes;
  HostMemoryOptions memory;                     // of the result
  Communicator* tensor_communicator = nullptr;  // null: the other one
  /// The caller's, on which tensors are made ready; the default stream of devices that none is of.
  std::vector<DeviceStream> streams;
  TransferReport* report = nullptr;  // filled if not null
};

/// Rank 0's `full` state (whole tensors and values; other ranks' is not looked at) into the shards
/// that each rank's `target` says. The result has the target's structure. Its tensors are written
/// where the target has memory, and it borrows them; where the target's view is null it owns them.
/// Leaves that are not sharded become whole tensors or plain values as they are in `full`; keys
/// that the target lacks are passed over.
///
/// kInvalidArgument on all ranks, beside what the top of this file says: dtypes or global shapes
/// differ, a value for a sharded tensor, a sharded `full`, too small a buffer.
/// kResourceExhausted: a rank has no memory for the result.
/// Cost: rank 0 sends each rank the bytes of its shards; a tensor that all ranks hold whole goes by
/// one Broadcast.
Result<HostState> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                     Communicator& communicator,
                                     const BroadcastOptions& options = {});

/// The same where every rank has the full state: `rank`'s shards are cut from it, nothing is sent.
/// Memory of `full` and `target` does not overlap.
Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options = {});

}  // namespace cairn::core
