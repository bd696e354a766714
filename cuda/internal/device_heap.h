#pragma once
/// Memory of a device and page-locked host memory, allocated and freed without blocking the device.
/// cudaMalloc and cudaFree may block it, so the stream-ordered allocator is used, on a stream that
/// carries nothing else.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/stream.h"

namespace cairn::cuda::internal {

/// The memory of one device. Ownership: shared with the memory that it has allocated. Threads: all
/// members are safe.
class DeviceHeap : public std::enable_shared_from_this<DeviceHeap> {
 public:
  /// kResourceExhausted, kUnavailable: the stream cannot be created.
  static Result<std::shared_ptr<const DeviceHeap>> Make(int device) {
    auto heap = std::shared_ptr<DeviceHeap>(new DeviceHeap(device));
    const DeviceScope scope(device);
    CAIRN_TRY(Check(
        cudaDeviceGetAttribute(&heap->multiprocessors_, cudaDevAttrMultiProcessorCount, device),
        "querying the attributes of the GPU"));
    CAIRN_TRY_ASSIGN(heap->stream_, Stream::Make());
    return heap;
  }

  int device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }

  /// Returns memory that any stream may use at once; all work that uses it must have ended when it
  /// is freed. Returns no memory for 0 bytes. kResourceExhausted: the message names the device and
  /// its free memory.
  Result<core::DeviceMemory> Allocate(uint64_t length_bytes) const {
    if (length_bytes == 0) return core::DeviceMemory();
    const DeviceScope scope(device_);
    void* memory = nullptr;
    const cudaError_t status = cudaMallocAsync(&memory, length_bytes, stream_.get());
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      const auto free_bytes = FreeBytes();
      return Fail(ErrorCode::kResourceExhausted,
                  fmt::format("GPU {} has no {} bytes left ({} bytes are free); free memory, or "
                              "configure Cairn to use less",
                              device_, length_bytes, free_bytes.value_or(0)));
    }
    CAIRN_TRY(Check(status, "allocating GPU memory"));
    const auto free = [heap = shared_from_this()](std::byte* freed) {
      const DeviceScope scope(heap->device_);
      Ignore(cudaFreeAsync(freed, heap->stream_.get()));
    };
    core::DeviceMemory allocated({static_cast<std::byte*>(memory), free}, length_bytes);
    // The stream contains only allocations, so this is fast; other streams may then use the memory.
    CAIRN_TRY(stream_.Synchronize());
    return allocated;
  }

  /// Makes the memory at least this long. If it has to grow, its contents are lost.
  Result<void> Grow(core::DeviceMemory& memory, uint64_t length_bytes) const {
    if (memory.length_bytes() >= length_bytes) return {};
    memory = {};  // first, because there may not be enough memory for both
    CAIRN_TRY_ASSIGN(memory, Allocate(length_bytes));
    return {};
  }

  /// Returns about how many bytes Allocate could allocate now.
  Result<uint64_t> FreeBytes() const {
    const DeviceScope scope(device_);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    CAIRN_TRY(Check(cudaMemGetInfo(&free_bytes, &total_bytes), "querying the free GPU memory"));
    return free_bytes;
  }

 private:
  explicit DeviceHeap(int device) : device_(device) {}
  const int device_;
  int multiprocessors_ = 0;
  Stream stream_;
};

/// Page-locked host memory, for tables and small results. Ownership: move-only.
class PinnedBuffer {
 public:
  /// Makes the buffer at least this long, rounded up to a power of two. If it has to grow, its
  /// contents are lost.
  Result<void> Grow(uint64_t length_bytes) {
    if (length_bytes_ >= length_bytes) return {};
    void* memory = nullptr;
    const uint64_t rounded = std::bit_ceil(std::max<uint64_t>(length_bytes, 64 << 10));
    CAIRN_TRY(Check(cudaHostAlloc(&memory, rounded, cudaHostAllocPortable),
                    "allocating page-locked host memory"));
    memory_.emplace_back(static_cast<std::byte*>(memory));
    length_bytes_ = rounded;
    return {};
  }
  /// Requires Grow.
  std::byte* data() const { return memory_.back().get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { Ignore(cudaFreeHost(memory)); }
  };
  // The last one, and those that it has replaced, which together are less than twice as long: to
  // free page-locked memory waits for the complete device.
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  uint64_t length_bytes_ = 0;
};

}  // namespace cairn::cuda::internal
