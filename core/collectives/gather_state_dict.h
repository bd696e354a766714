#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Gathers full state dicts from shards on all ranks; see
/// core/collectives/state_dict_collectives.h.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/collectives/broadcast_options.h"
#include "core/device/device.h"
#include "core/ranks/communicator.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

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
/// or another error that core/collectives/state_dict_collectives.h describes.
/// kResourceExhausted: a rank has not enough memory for the result.
/// Cost: each byte is sent once to every rank that receives it.
Result<HostState> GatherStateDict(const StateDict& state, Communicator& communicator,
                                  const GatherOptions& options = {});

}  // namespace cairn::core
