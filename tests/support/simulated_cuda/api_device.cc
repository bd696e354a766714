// Devices, versions and errors of the simulated CUDA runtime.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "tests/support/simulated_cuda/runtime.h"

using cairn::simulated_cuda::Call;
using cairn::simulated_cuda::CompletionPtr;
using cairn::simulated_cuda::CurrentDevice;
using cairn::simulated_cuda::LastError;
using cairn::simulated_cuda::Needs;
using cairn::simulated_cuda::Runtime;
using cairn::simulated_cuda::SetCurrentDevice;

namespace {

constexpr int kVersion = CUDART_VERSION;
constexpr int kMultiprocessorCount = 4;  // few: kernels that fill the device launch few blocks

bool IsDevice(int device) {
  const std::lock_guard lock(Runtime::Get().mutex());
  return device >= 0 && device < static_cast<int>(Runtime::Get().devices.size());
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return LockedCall("cudaGetDeviceCount", Needs::kNothing, [&](Runtime& runtime) {
    *count = static_cast<int>(runtime.devices.size());
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call("cudaGetDevice", Needs::kNothing, [&] {
    if (!IsDevice(0)) return cudaErrorNoDevice;
    *device = CurrentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Call("cudaSetDevice", Needs::kNothing, [&] {
    if (!IsDevice(0)) return cudaErrorNoDevice;
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    SetCurrentDevice(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call("cudaGetDeviceProperties", Needs::kNothing, [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "Simulated device %d", device);
    properties->totalGlobalMem = Runtime::Get().config.device_memory_bytes;
    properties->multiProcessorCount = kMultiprocessorCount;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call("cudaDeviceGetAttribute", Needs::kNothing, [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
    *value = kMultiprocessorCount;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return Call("cudaRuntimeGetVersion", Needs::kNothing, [&] {
    *version = kVersion;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return Call("cudaDriverGetVersion", Needs::kNothing, [&] {
    *version = IsDevice(0) ? kVersion : 0;  // 0: no driver
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return Call("cudaDeviceSynchronize", Needs::kDevice, [] {
    Runtime& runtime = Runtime::Get();
    std::vector<CompletionPtr> tails;
    {
      const std::lock_guard lock(runtime.mutex());
      ++runtime.counters.device_synchronize_count;
      tails = runtime.Tails(CurrentDevice(), false);
    }
    WaitForAll(tails);
    return runtime.StickyError(CurrentDevice());
  });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* /*symbol*/, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  // There is no driver behind this runtime.
  *function = nullptr;
  if (found != nullptr) *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// The error of a lost device is returned by every call.
cudaError_t cudaGetLastError() {
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  const cudaError_t last = std::exchange(LastError(), cudaSuccess);
  const cudaError_t sticky =
      runtime.devices.empty() ? cudaSuccess : runtime.devices[CurrentDevice()].sticky_error;
  return sticky == cudaSuccess ? last : sticky;
}

}  // extern "C"
