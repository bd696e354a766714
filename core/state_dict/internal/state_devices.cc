// Collects the devices of all views, including those of explicit parts.

#include "core/state_dict/internal/state_devices.h"

#include "core/state_dict/internal/leaves.h"

namespace cairn::core::internal {

void AddDevices(const StateDict& state, std::set<int>& devices) {
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    ForEachMemory(state, i, [&](const TensorView& view) {
      if (view.device != kHostDevice) devices.insert(view.device);
    });
  }
}

}  // namespace cairn::core::internal
