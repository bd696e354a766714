// Memory and copies of the simulated CUDA runtime.
#include <cuda_runtime_api.h>

#include <cstring>
#include <optional>
#include <vector>

#include "tests/support/simulated_cuda/runtime.h"

namespace cairn::simulated_cuda {
namespace {

struct Copy {
  void* target;
  void* source;
  uint64_t bytes;
};

bool IsOfDevice(MemoryKind kind) { return kind == MemoryKind::kDevice; }

// The operation of the stream. It fails as a kernel would if device memory was freed before it
// runs.
void RunCopy(MemoryRegistry& memory, const Copy& copy, int stream_device) {
  if (!memory.InBounds(copy.target, copy.bytes) || !memory.InBounds(copy.source, copy.bytes)) {
    Runtime::Get().SetStickyError(stream_device, cudaErrorIllegalAddress);
    return;
  }
  std::memmove(memory.Accessible(copy.target), memory.Accessible(copy.source), copy.bytes);
}

struct Direction {
  bool to_device;
  bool from_device;
  bool pageable;  // the caller waits
};

bool Matches(cudaMemcpyKind kind, const Direction& direction) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !direction.to_device && !direction.from_device;
    case cudaMemcpyHostToDevice:
      return direction.to_device && !direction.from_device;
    case cudaMemcpyDeviceToHost:
      return !direction.to_device && direction.from_device;
    case cudaMemcpyDeviceToDevice:
      return direction.to_device && direction.from_device;
    case cudaMemcpyDefault:
      return true;
    default:
      return false;
  }
}

// Returns nothing if the addresses do not match `kind`, or are not within one allocation each.
std::optional<Direction> DirectionOf(const MemoryRegistry& memory, const Copy& copy,
                                     cudaMemcpyKind kind) {
  for (const void* address : {copy.target, copy.source}) {
    if (address == nullptr || !memory.InBounds(address, copy.bytes)) return std::nullopt;
  }
  const MemoryKind target = memory.Find(copy.target).kind;
  const MemoryKind source = memory.Find(copy.source).kind;
  const Direction direction{
      .to_device = IsOfDevice(target),
      .from_device = IsOfDevice(source),
      .pageable = target == MemoryKind::kPageable || source == MemoryKind::kPageable};
  if (!Matches(kind, direction)) return std::nullopt;
  return direction;
}

void Count(Counters& counters, const Direction& direction, uint64_t bytes) {
  if (direction.to_device == direction.from_device) return;
  (direction.to_device ? counters.h2d_bytes : counters.d2h_bytes) += bytes;
  if (direction.pageable) ++counters.pageable_count;
}

cudaError_t EnqueueCopy(void* target, const void* source, uint64_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream, bool wait) {
  if (bytes == 0) return cudaSuccess;
  const Copy copy{target, const_cast<void*>(source), bytes};
  Runtime& runtime = Runtime::Get();
  CompletionPtr done;
  int device = 0;
  {
    const std::lock_guard lock(runtime.mutex());
    const StreamPtr queue = runtime.FindStream(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    device = queue->options().device;
    MemoryRegistry& memory = *runtime.memory;
    const std::optional<Direction> direction = DirectionOf(memory, copy, kind);
    if (!direction) return cudaErrorInvalidValue;
    Count(runtime.counters, *direction, bytes);
    done = runtime.Enqueue(queue, [&memory, copy, device] { RunCopy(memory, copy, device); });
    // For copies within a device not even the caller of cudaMemcpy waits.
    if (direction->to_device && direction->from_device) {
      wait = false;
    } else if (direction->pageable) {
      wait = true;
    }
  }
  if (wait) done->Wait();
  return runtime.StickyError(device);
}

cudaError_t EnqueueMemset(void* target, int value, uint64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  const StreamPtr queue = runtime.FindStream(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  MemoryRegistry& memory = *runtime.memory;
  const bool known = memory.Find(target).kind != MemoryKind::kPageable;
  if (!known || !memory.InBounds(target, bytes)) return cudaErrorInvalidValue;
  runtime.Enqueue(queue, [&memory, target, value, bytes] {
    std::memset(memory.Accessible(target), value, bytes);
  });
  return cudaSuccess;
}

// Functions that free memory wait for all work that may still use it.
void SynchronizeImplicitly(int device) {
  Runtime& runtime = Runtime::Get();
  std::vector<CompletionPtr> tails;
  {
    const std::lock_guard lock(runtime.mutex());
    ++runtime.counters.implicit_synchronize_count;
    tails = runtime.Tails(device, false);
  }
  WaitForAll(tails);
}

}  // namespace
}  // namespace cairn::simulated_cuda

using namespace cairn::simulated_cuda;  // NOLINT(google-build-using-namespace): C functions below

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return LockedCall("cudaMalloc", Needs::kDevice, [&](Runtime& runtime) {
    if (memory == nullptr) return cudaErrorInvalidValue;
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    *memory = runtime.memory->AllocateDevice(CurrentDevice(), bytes);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    ++runtime.counters.device_malloc_count;
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* memory) {
  return Call("cudaFree", Needs::kRelease, [&] {
    if (memory == nullptr) return cudaSuccess;
    const MemoryRange range = Runtime::Get().memory->Find(memory);
    if (range.kind != MemoryKind::kDevice) return cudaErrorInvalidValue;
    SynchronizeImplicitly(range.device);
    if (!Runtime::Get().memory->FreeDevice(memory)) return cudaErrorInvalidValue;
    return Runtime::Get().StickyError(range.device);
  });
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  return StreamCall("cudaMallocAsync", Needs::kDevice, stream, [&](auto& runtime, auto& queue) {
    if (memory == nullptr) return cudaErrorInvalidValue;
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    // What this stream frees earlier is free when this stream uses the new memory.
    *memory = runtime.memory->AllocateDevice(queue->options().device, bytes,
                                             runtime.freed_later_bytes[queue.get()]);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    ++runtime.counters.device_malloc_count;
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return StreamCall("cudaFreeAsync", Needs::kRelease, stream, [&](auto& runtime, auto& queue) {
    if (memory == nullptr) return cudaSuccess;
    const MemoryRange range = runtime.memory->Find(memory);
    if (range.kind != MemoryKind::kDevice || range.start != reinterpret_cast<uintptr_t>(memory)) {
      return cudaErrorInvalidValue;
    }
    const StreamQueue* const key = queue.get();
    runtime.freed_later_bytes[key] += range.size_bytes;
    runtime.Enqueue(queue, [&runtime, memory, key, bytes = range.size_bytes] {
      const std::lock_guard run_lock(runtime.mutex());
      runtime.memory->FreeDevice(memory);
      runtime.freed_later_bytes[key] -= bytes;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return LockedCall("cudaMemGetInfo", Needs::kDevice, [&](Runtime& runtime) {
    *total_bytes = runtime.config.device_memory_bytes;
    *free_bytes = *total_bytes - runtime.memory->DeviceUsedBytes(CurrentDevice());
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  return LockedCall("cudaHostAlloc", Needs::kDevice, [&](Runtime& runtime) {
    constexpr unsigned kKnown =
        cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if (memory == nullptr || (flags & ~kKnown) != 0) return cudaErrorInvalidValue;
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    *memory = runtime.memory->AllocatePinned(CurrentDevice(), bytes);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    ++runtime.counters.host_alloc_count;
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return Call("cudaFreeHost", Needs::kRelease, [&] {
    if (memory == nullptr) return cudaSuccess;
    const MemoryRange range = Runtime::Get().memory->Find(memory);
    if (range.kind != MemoryKind::kPinned) return cudaErrorInvalidValue;
    SynchronizeImplicitly(range.device);
    return Runtime::Get().memory->FreePinned(memory) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  return LockedCall("cudaHostRegister", Needs::kDevice, [&](Runtime& runtime) {
    constexpr unsigned kKnown = cudaHostRegisterPortable | cudaHostRegisterMapped;
    if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
    if ((flags & ~kKnown) != 0) return cudaErrorNotSupported;  // not simulated
    if (!runtime.memory->Register(CurrentDevice(), memory, bytes)) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    ++runtime.counters.host_register_count;
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return Call("cudaHostUnregister", Needs::kRelease, [&] {
    const MemoryRange range = Runtime::Get().memory->Find(memory);
    if (range.kind != MemoryKind::kRegistered) return cudaErrorHostMemoryNotRegistered;
    SynchronizeImplicitly(range.device);
    return Runtime::Get().memory->Unregister(memory) ? cudaSuccess
                                                     : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return Call("cudaPointerGetAttributes", Needs::kDevice, [&] {
    const MemoryRange range = Runtime::Get().memory->Find(pointer);
    *attributes = {};
    void* const address = const_cast<void*>(pointer);
    if (range.kind == MemoryKind::kDevice) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = range.device;
      attributes->devicePointer = address;
    } else if (range.kind == MemoryKind::kPinned || range.kind == MemoryKind::kRegistered) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = range.device;
      attributes->devicePointer = address;
      attributes->hostPointer = address;
    } else {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -2;
      attributes->hostPointer = address;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  return Call("cudaMemcpy", Needs::kDevice,
              [&] { return EnqueueCopy(target, source, bytes, kind, nullptr, true); });
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call("cudaMemcpyAsync", Needs::kDevice,
              [&] { return EnqueueCopy(target, source, bytes, kind, stream, false); });
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return Call("cudaMemset", Needs::kDevice,
              [&] { return EnqueueMemset(memory, value, bytes, nullptr); });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return Call("cudaMemsetAsync", Needs::kDevice,
              [&] { return EnqueueMemset(memory, value, bytes, stream); });
}

}  // extern "C"
