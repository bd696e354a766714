// Finds the registered accelerator.

#include "core/device/device.h"

#include <atomic>

namespace cairn::core {
namespace {

std::atomic<DeviceBackendFinder> registered{nullptr};

}  // namespace

void SetDeviceBackend(DeviceBackendFinder find) { registered = find; }

Result<DeviceBackend*> FindDeviceBackend() {
  const DeviceBackendFinder find = registered;
  if (find == nullptr) {
    return Fail(ErrorCode::kUnimplemented,
                "this build of Cairn has no CUDA layer; copy tensors to host memory first, or "
                "build with a CUDA 13 toolkit");
  }
  return find();
}

}  // namespace cairn::core
