// Devices, versions, errors and function attributes of the simulated CUDA runtime.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
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
constexpr int kSharedBytesPerBlock = 48 << 10;
constexpr int kSharedBytesPerBlockOptIn = 227 << 10;
constexpr int kThreadsPerMultiprocessor = 2048;

bool IsDevice(int device) {
  const std::lock_guard lock(Runtime::Get().mutex());
  return device >= 0 && device < static_cast<int>(Runtime::Get().devices.size());
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return Call("cudaGetDeviceCount", Needs::kNothing, [&] {
    const std::lock_guard lock(Runtime::Get().mutex());
    *count = static_cast<int>(Runtime::Get().devices.size());
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
    const auto& config = Runtime::Get().config;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "Simulated device %d", device);
    properties->totalGlobalMem = config.device_memory_bytes;
    properties->sharedMemPerBlock = kSharedBytesPerBlock;
    properties->sharedMemPerBlockOptin = kSharedBytesPerBlockOptIn;
    properties->sharedMemPerMultiprocessor = kSharedBytesPerBlockOptIn + 1024;
    properties->regsPerBlock = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->major = config.compute_major;
    properties->minor = config.compute_minor;
    properties->multiProcessorCount = config.multiprocessor_count;
    properties->maxThreadsPerMultiProcessor = kThreadsPerMultiprocessor;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->canMapHostMemory = 1;
    properties->concurrentKernels = 1;
    properties->asyncEngineCount = 2;
    properties->unifiedAddressing = 1;
    properties->canUseHostPointerForRegisteredMem = 1;
    properties->hostRegisterSupported = 1;
    properties->memoryPoolsSupported = 1;
    properties->streamPrioritiesSupported = 1;
    properties->l2CacheSize = 50 << 20;
    properties->pciBusID = device + 1;
    std::memset(properties->uuid.bytes, 0x40 + device, sizeof properties->uuid.bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call("cudaDeviceGetAttribute", Needs::kNothing, [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    const auto& config = Runtime::Get().config;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = kSharedBytesPerBlock;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = kSharedBytesPerBlockOptIn;
        return cudaSuccess;
      case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = config.multiprocessor_count;
        return cudaSuccess;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = kThreadsPerMultiprocessor;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = config.compute_major;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = config.compute_minor;
        return cudaSuccess;
      case cudaDevAttrAsyncEngineCount:
        *value = 2;
        return cudaSuccess;
      case cudaDevAttrL2CacheSize:
        *value = 50 << 20;
        return cudaSuccess;
      case cudaDevAttrPciBusId:
        *value = device + 1;
        return cudaSuccess;
      case cudaDevAttrMaxGridDimX:
        *value = 0x7fffffff;
        return cudaSuccess;
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrMemoryPoolsSupported:
      case cudaDevAttrHostRegisterSupported:
      case cudaDevAttrCanUseHostPointerForRegisteredMem:
      case cudaDevAttrCanMapHostMemory:
      case cudaDevAttrConcurrentKernels:
        *value = 1;
        return cudaSuccess;
      case cudaDevAttrPciDeviceId:
      case cudaDevAttrPciDomainId:
      case cudaDevAttrIntegrated:
      case cudaDevAttrPageableMemoryAccess:
      case cudaDevAttrHostRegisterReadOnlySupported:
      case cudaDevAttrGPUDirectRDMASupported:
        *value = 0;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;  // not simulated
    }
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return Call("cudaDeviceGetPCIBusId", Needs::kNothing, [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    const int written = std::snprintf(text, length, "0000:%02X:00.0", device + 1);
    return written < length ? cudaSuccess : cudaErrorInvalidValue;
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

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return Call("cudaDeviceCanAccessPeer", Needs::kNothing, [&] {
    if (!IsDevice(device) || !IsDevice(peer)) return cudaErrorInvalidDevice;
    *can = device != peer && Runtime::Get().config.can_access_peer;
    return cudaSuccess;
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

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return Call("cudaDeviceEnablePeerAccess", Needs::kDevice, [&] {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!IsDevice(peer) || peer == CurrentDevice()) return cudaErrorInvalidDevice;
    Runtime& runtime = Runtime::Get();
    const std::lock_guard lock(runtime.mutex());
    if (!runtime.config.can_access_peer) return cudaErrorPeerAccessUnsupported;
    const bool is_new = runtime.devices[CurrentDevice()].peers.insert(peer).second;
    return is_new ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return Call("cudaDeviceDisablePeerAccess", Needs::kDevice, [&] {
    Runtime& runtime = Runtime::Get();
    const std::lock_guard lock(runtime.mutex());
    const bool was_there = runtime.devices[CurrentDevice()].peers.erase(peer) > 0;
    return was_there ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return Call("cudaFuncSetAttribute", Needs::kDevice, [&] {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > kSharedBytesPerBlockOptIn) return cudaErrorInvalidValue;
    const std::lock_guard lock(Runtime::Get().mutex());
    Runtime::Get().dynamic_shared_limits[function] = value;
    return cudaSuccess;
  });
}

// The register count of a kernel is unknown: only threads and shared memory are considered.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* block_count, const void*,
                                                          int block_size, size_t shared_bytes) {
  return Call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", Needs::kDevice, [&] {
    if (block_size <= 0 || block_size > 1024) return cudaErrorInvalidValue;
    int blocks = kThreadsPerMultiprocessor / block_size;
    if (blocks > 32) blocks = 32;
    if (shared_bytes > 0) {
      const auto fitting = static_cast<int>(kSharedBytesPerBlockOptIn / shared_bytes);
      if (fitting < blocks) blocks = fitting;
    }
    *block_count = blocks;
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* block_count,
                                                                   const void* function,
                                                                   int block_size,
                                                                   size_t shared_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(block_count, function, block_size,
                                                       shared_bytes);
}

// The error of a lost device is returned by every call.
cudaError_t cudaPeekAtLastError() {
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  if (!runtime.devices.empty()) {
    const cudaError_t sticky = runtime.devices[CurrentDevice()].sticky_error;
    if (sticky != cudaSuccess) return sticky;
  }
  return LastError();
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  LastError() = cudaSuccess;
  return error;
}

}  // extern "C"
