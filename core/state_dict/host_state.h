#pragma once
/// State dicts that own the memory of their tensors: host memory, or that of devices.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "core/device/host_memory.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/state_target.h"

namespace cairn::core {

/// A state dict and one region of host memory, in which its tensors lie row-major, with one region
/// more for each device that some of them lie on.
///
/// Ownership: move-only; owns the regions. Some tensors may be borrowed, where the function that
/// made the state says so. Threads: as StateDict.
class HostState {
 public:
  /// Tensors begin at multiples of this, which O_DIRECT asks for on most disks.
  static constexpr uint64_t kAlignmentBytes = 512;

  /// An empty dict.
  HostState() = default;
  /// Gives memory, that of the host zeroed, to the tensors i (index in `state.tensors`) for which
  /// `owned[i]` holds, or to all of them without `owned`; of a tensor that is made of parts, to
  /// each part. Tensors without elements get none. Scalars are tensors of one element. Other
  /// tensors stay borrowed. A tensor whose view names a device gets memory there, any other host
  /// memory. kInvalidArgument: a dtype or shape without a length, naming the key.
  /// kResourceExhausted: no memory. kUnimplemented: as HostMemory.
  static Result<HostState> Allocate(StateDict state, const HostMemoryOptions& options = {},
                                    const std::vector<bool>* owned = nullptr);
  /// The tensors of a state of the same structure that another process has in shared memory, all of
  /// them owned there: its `descriptor()`, which stays the caller's. kInvalidArgument: as
  /// HostMemory::Map, so if the structures differ in length.
  static Result<HostState> Map(StateDict state, int descriptor);

  const StateDict& state() const { return state_; }
  StateTarget target() { return StateTarget(state_); }
  /// Of host memory: what the tensors take that are owned there, with alignment.
  uint64_t memory_bytes() const { return memory_.bytes().size(); }
  /// Of shared memory, else -1. Valid as long as this object.
  int descriptor() const { return memory_.descriptor(); }

 private:
  StateDict state_;
  HostMemory memory_;
  std::vector<std::unique_ptr<DeviceMemory>> device_memory_;
};

}  // namespace cairn::core
