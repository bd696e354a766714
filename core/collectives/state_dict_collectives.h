#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Collectives that convert state dicts between one shard per rank and full states on some ranks:
/// gather, broadcast, distribute.
///
/// They correspond to torch.distributed._state_dict_utils. The ranks of meshes are ranks of the
/// communicator. Ranks may have different keys (pipeline stages). Ranks that are not in the mesh of
/// a tensor hold nothing of it; every rank of the mesh must have the key.
///
/// Memory: in addition to the result, a call needs at most `buffer_bytes` for buffers of tensor
/// bytes, and descriptions of the leaves (about 150 bytes per leaf, and the values). Larger tensors
/// are sent in parts, small ones together. Bytes that are contiguous in memory are sent from, or
/// received in, the tensors themselves, without a buffer.
///
/// Devices: tensors of a state may be in device memory (TensorView::device). The results are then
/// on the same device: a gathered tensor on the device of its shards, and a tensor for which the
/// target has no memory on the device of its view; with cpu_offload all are in host memory. A
/// communicator of the device (Communicator::device) sends bytes from device to device, with
/// buffers in device memory. With any other communicator bytes pass through host memory, which is
/// page-locked if the system allows it. The tensors are accessed after all work that `streams`
/// contained when the call began. The call returns when its work is complete, so that all later
/// work on any stream runs after it.
///
/// Two communicators: with `tensor_communicator`, only tensors are sent over that one. Everything
/// else, such as statuses, is sent over the communicator of the call. For example, device memory is
/// sent over NCCL and the rest over TCP. Both have the same ranks in the same order.
///
/// Collectives: every rank calls them with the same options, except for `targets`, `memory`,
/// `streams` and `report`. If a rank rejects its arguments, all ranks return the same error, which
/// names the rank and the key, and nothing has been written. Every wait is a call of the
/// communicator and ends within its deadline. After an error of the communicator itself
/// (kUnavailable) the contents of targets are unspecified.
///
/// Threads: one call at a time per communicator. States must not change during a call.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/ranks/communicator.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// The bytes that one call moved on this rank.
struct TransferReport {
  uint64_t sent_bytes = 0;         // tensor bytes that it sent, also to itself
  uint64_t received_bytes = 0;     // tensor bytes from other ranks
  uint64_t peak_buffer_bytes = 0;  // the most that was in buffers at one time
  uint64_t round_count = 0;        // calls of the communicator that sent tensors
};

inline constexpr uint64_t kDefaultBufferBytes = 64 << 20;

struct BroadcastOptions {
  /// Omit leaves from the result that the full state lacks. Otherwise they remain as in the target.
  bool strict = false;
  /// Allocate memory for every tensor that the full state fills, and do not write to the target.
  bool cpu_offload = false;
  /// At least 4 bytes per rank. DistributeStateDict does not use it.
  uint64_t buffer_bytes = kDefaultBufferBytes;
  HostMemoryOptions memory;                     // for the result
  Communicator* tensor_communicator = nullptr;  // null: the communicator of the call
  /// Streams of the caller on which tensors are computed; for a device without an entry, its
  /// default stream.
  std::vector<DeviceStream> streams;
  TransferReport* report = nullptr;  // filled if not null
};

/// Returns what BroadcastStateDict returns on `rank`, for ranks that all have the `full` state:
/// copies the shards of `rank` from it, and sends nothing. Requires that the memory of `full` and
/// `target` does not overlap. kInvalidArgument, kResourceExhausted: as for BroadcastStateDict, on
/// this rank only.
Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options = {});

/// Copies the `full` state of rank 0, whose tensors are not sharded, to the shards that the
/// `target` of each rank describes; `full` is ignored on other ranks. The result has the structure
/// of the target. If a tensor of the target has memory, this memory is written, and the result
/// borrows it; otherwise the result owns the tensor. Leaves that are not sharded become complete
/// tensors or values, as in `full`. Keys that the target lacks are ignored. Collective.
///
/// kInvalidArgument on all ranks: dtypes or global shapes differ, `full` has a value for a sharded
/// tensor or is sharded itself, the buffer is too small, or another error that is described above.
/// kResourceExhausted: a rank has not enough memory for the result.
/// Cost: rank 0 sends each rank the bytes of its shards; it sends a tensor that all ranks hold
/// completely with one Broadcast.
Result<HostState> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                     Communicator& communicator,
                                     const BroadcastOptions& options = {});

struct GatherOptions {
  /// Also copy tensors that need no gathering, so that the result owns all of its tensors.
  /// Otherwise it borrows those from the local state, which must outlive the result.
  bool cpu_offload = false;
  /// Ranks that receive the state; the others receive an empty dict. Empty: all ranks receive it.
  std::vector<int> ranks_only;
  /// At least 4 bytes per rank.
  uint64_t buffer_bytes = kDefaultBufferBytes;
  HostMemoryOptions memory;  // for the result
  /// Memory of the caller for gathered tensors, by FQN, which the result borrows. It may be on any
  /// device, also with cpu_offload, and may have any strides.
  std::map<std::string, TensorTarget, std::less<>> targets;
  Communicator* tensor_communicator = nullptr;  // null: the communicator of the call
  /// Streams of the caller on which tensors are computed; for a device without an entry, its
  /// default stream.
  std::vector<DeviceStream> streams;
  TransferReport* report = nullptr;  // filled if not null
};

/// Returns the state of this rank with every sharded tensor complete, assembled from the shards of
/// all ranks; one of several replicas is sent. Takes values and unsharded tensors from this rank.
/// Collective.
///
/// kInvalidArgument on all ranks: a shard does not match its sharding, or has no memory; explicit
/// shards have gaps or overlaps; ranks describe a key differently; `ranks_only` contains a rank
/// that does not exist; an entry of `targets` has another dtype or shape; the buffer is too small;
/// or another error that is described above.
/// kResourceExhausted: a rank has not enough memory for the result.
/// Cost: each byte is sent once to every rank that receives it.
Result<HostState> GatherStateDict(const StateDict& state, Communicator& communicator,
                                  const GatherOptions& options = {});

}  // namespace cairn::core
