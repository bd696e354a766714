#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Collectives that copy tensors between one shard per rank and complete tensors on some ranks:
/// gather, broadcast, distribute.
///
/// They correspond to torch.distributed._state_dict_utils. The ranks of meshes are ranks of the
/// communicator. Ranks may have different keys (pipeline stages). Ranks that are not in the mesh of
/// a tensor hold nothing of it; every rank of the mesh must have the key. Only tensors are copied:
/// values are ignored, but a key may not have a tensor in one state and a value in the other.
///
/// Memory: the caller provides the memory of all tensors. States that are read must not overlap
/// states that are written. A call needs at most `buffer_bytes` for buffers of tensor bytes, and
/// descriptions of the leaves (about 150 bytes per leaf). Larger tensors are sent in parts, small
/// ones together. Bytes that are contiguous in memory are sent from, or received in, the tensors
/// themselves, without a buffer.
///
/// Devices: tensors may be in device memory (TensorView::device). A communicator of the device
/// (Communicator::device) sends bytes from device to device, with buffers in device memory. With
/// any other communicator bytes pass through host memory, which is page-locked if the system allows
/// it. The tensors are accessed after all work that `streams` contained when the call began. The
/// call returns when its work is complete, so that all later work on any stream runs after it.
///
/// Two communicators: with `tensor_communicator`, only tensors are sent over that one. Everything
/// else, such as statuses, is sent over the communicator of the call. For example, device memory is
/// sent over NCCL and the rest over TCP. Both have the same ranks in the same order.
///
/// Collectives: every rank calls them with the same options, except for `streams`. If a rank
/// rejects its arguments, all ranks return the same error, which names the rank and the key, and
/// nothing has been written. Every wait is a call of the communicator and ends within its deadline.
/// After an error of the communicator itself (kUnavailable) the contents of targets are
/// unspecified.
///
/// Threads: one call at a time per communicator. States must not change during a call.

#include <cstdint>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/ranks/communicator.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

inline constexpr uint64_t kDefaultBufferBytes = 64 << 20;

struct CollectiveOptions {
  /// For GatherStateDict: ranks that receive the tensors. Empty: all ranks receive them.
  std::vector<int> ranks_only;
  /// At least 4 bytes per rank.
  uint64_t buffer_bytes = kDefaultBufferBytes;
  Communicator* tensor_communicator = nullptr;  // null: the communicator of the call
  /// Streams of the caller on which tensors are computed; for a device without an entry, its
  /// default stream.
  std::vector<DeviceStream> streams;
};

/// Copies to each receiver every sharded tensor of its `state`, complete, into the tensor of
/// `whole` with the same FQN. The shards of all ranks together form it; one of several replicas is
/// sent. Other tensors of `whole` are not written. Ranks that do not receive ignore `whole`.
/// Collective.
///
/// kInvalidArgument on all ranks: a shard does not match its sharding; a tensor with elements has
/// no memory; explicit shards have gaps or overlaps; ranks describe a key differently; `whole`
/// lacks a tensor, has it with another dtype or shape, or is sharded itself; `ranks_only` contains
/// a rank that does not exist; the buffer is too small; or another error that is described above.
/// kResourceExhausted: a rank has not enough memory for its buffers.
/// Cost: each byte is sent once to every rank that receives it.
Result<void> GatherStateDict(const StateDict& state, const StateTarget& whole,
                             Communicator& communicator, const CollectiveOptions& options = {});

/// Copies the tensors of the `full` state of rank 0, which are not sharded, to the tensors and
/// shards of each rank's `target`. Every rank passes the names, dtypes and shapes of the full
/// state; only rank 0 has its memory. Keys that only one of the two states has are ignored.
/// Collective.
///
/// kInvalidArgument on all ranks: dtypes or global shapes differ, `full` is sharded itself, ranks
/// describe it differently, a tensor with elements has no memory, the buffer is too small, or
/// another error that is described above.
/// kResourceExhausted: a rank has not enough memory for its buffers.
/// Cost: rank 0 sends each rank the bytes of its shards; it sends a tensor that all ranks hold
/// completely with one Broadcast.
Result<void> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                Communicator& communicator, const CollectiveOptions& options = {});

/// Does what BroadcastStateDict does on `rank`, for ranks that all have the memory of `full`:
/// copies the shards of `rank` from it, and sends nothing. kInvalidArgument: as for
/// BroadcastStateDict, on this rank only.
Result<void> DistributeStateDict(const StateDict& full, const StateTarget& target, uint32_t rank,
                                 std::span<const DeviceStream> streams = {});

}  // namespace cairn::core
