#pragma once
/// Copies of state dicts: do two have the same structure, and companions to copy into.
///
/// Devices: tensors may lie on devices, on either side. They are read and written after all that
/// `streams` held when the call began (for devices that none is of, the default stream), and the
/// call returns when its work is done.
///
/// Threads: calls may run at once if they write to different memory.

#include <span>

#include "core/device/device.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/state_target.h"

namespace cairn::core {

/// Whether two states have the same containers, keys and leaves, each tensor with the dtype and
/// shape of the other, sharded alike. Dicts may differ in order and in being ordered, lists and
/// tuples may stand for each other; int and string keys differ. Contents are not looked at.
/// kInvalidArgument: they differ, or one is no state dict; names the first key in the order of `a`
/// and how it differs.
Result<void> SameStructure(const StateDict& a, const StateDict& b);

/// A state of the structure of `like` with zeroed host memory of its own, sharded as `like` is.
/// Plain values are those of `like`; its tensors need no memory. Tensors that share memory in
/// `like` have each their own. Errors as HostState::Allocate.
Result<HostState> CreateCpuStateDict(const StateDict& like, const HostMemoryOptions& options = {});

/// Copies all tensors and plain values of `source` into `target`, which keeps its own order.
/// kInvalidArgument, before anything is written: as SameStructure, or a tensor has elements but no
/// memory. Requires that memory of `source` and `target` does not overlap, except for a tensor that
/// is the same on both sides.
Result<void> CopyStateDict(const StateDict& source, const StateTarget& target,
                           std::span<const DeviceStream> streams = {});

/// A copy of `state` in host memory that it owns. Errors as CreateCpuStateDict and CopyStateDict.
Result<HostState> OffloadStateDict(const StateDict& state, const HostMemoryOptions& options = {},
                                   std::span<const DeviceStream> streams = {});

}  // namespace cairn::core
