#pragma once
/// Shards on all ranks to whole state dicts; see core/collectives/state_dict_collectives.h.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/collectives/transfer.h"
#include "core/device/device.h"
#include "core/ranks/communicator.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

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

}  // namespace cairn::core
