#pragma once
// SPDX-License-Identifier: Apache-2.0
/// State dicts that own the memory of their tensors, on the host or on devices.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// A state dict with one region of host memory and one region per device, which contain its tensors
/// in row-major order.
///
/// Ownership: move-only; owns the regions. Some tensors may be borrowed if the function that
/// created the state is documented to borrow them. Threads: const members may be called
/// concurrently.
class HostState {
 public:
  /// Alignment of tensors, which O_DIRECT requires on most disks.
  static constexpr uint64_t kAlignmentBytes = 512;

  /// An empty dict.
  HostState() = default;
  /// Allocates memory for the tensors i (indices of `state.tensors`) for which owned[i] is true, or
  /// for all of them if `owned` is null; for a tensor that consists of parts, for each part. The
  /// memory is on the device of the tensor's view; host memory is zero. Tensors without elements
  /// need none. All other tensors remain borrowed. Requires that `owned` has one entry per tensor.
  /// kInvalidArgument, naming the key: TensorBytes rejects a dtype and shape. kResourceExhausted:
  /// there is not enough memory. kUnimplemented, kFailedPrecondition: there is no device for pinned
  /// or device memory.
  static Result<HostState> Allocate(StateDict state, const HostMemoryOptions& options = {},
                                    const std::vector<bool>* owned = nullptr);

  const StateDict& state() const { return state_; }
  StateTarget target() { return StateTarget(state_); }

 private:
  StateDict state_;
  HostMemory memory_;
  std::vector<DeviceMemory> device_memory_;
};

}  // namespace cairn::core
