#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Compares the structure of state dicts, and copies them.
///
/// Devices: tensors of either state may be in device memory. They are accessed after all work that
/// `streams` contained when the call began (for a device without an entry, the default stream), and
/// the call returns when its work is complete.
///
/// Threads: calls may run concurrently if they write to different memory.

#include <span>

#include "core/device/device.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// Succeeds if two states have the same containers, keys and leaves, and their tensors the same
/// dtypes, shapes and shardings. The order and the kinds of dicts are ignored, and so is the
/// difference between a list and a tuple; an int key differs from a string key. Contents are not
/// compared. kInvalidArgument: they differ, naming the first key in the order of `a` and the
/// difference, or StateDict::Leaves rejects one of them.
Result<void> SameStructure(const StateDict& a, const StateDict& b);

/// Returns a state with the structure, shardings and values of `like`, whose tensors are in host
/// memory that it owns, and zero. The tensors of `like` need not have memory; those that share
/// memory do not share it in the result. Returns the errors of HostState::Allocate.
Result<HostState> CreateCpuStateDict(const StateDict& like, const HostMemoryOptions& options = {});

/// Copies all tensors and values of `source` to `target`, which keeps its order. kInvalidArgument,
/// before anything is written: SameStructure rejects the two states, or a tensor has elements but
/// no memory. Requires that the memory of `source` and `target` does not overlap, except for
/// tensors that are the same in both.
Result<void> CopyStateDict(const StateDict& source, const StateTarget& target,
                           std::span<const DeviceStream> streams = {});

/// Returns a copy of `state` in host memory that it owns. Returns the errors of CreateCpuStateDict
/// and CopyStateDict.
Result<HostState> OffloadStateDict(const StateDict& state, const HostMemoryOptions& options = {},
                                   std::span<const DeviceStream> streams = {});

}  // namespace cairn::core
