#pragma once
/// Memory of a device and page-locked host memory, taken and given back without making the device
/// wait: cudaMalloc and cudaFree may, so the stream-ordered allocator is used, on a stream of its
/// own.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/stream.h"

namespace cairn::cuda::internal {

class DeviceHeap;

/// Ownership: move-only; given back by the destructor, before which no work may use it any more.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { Swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer(std::move(other)).Swap(*this);
    return *this;
  }
  ~DeviceBuffer();

  unsigned char* data() const { return data_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }
  uint64_t length_bytes() const { return length_bytes_; }

 private:
  friend class DeviceHeap;
  void Swap(DeviceBuffer& other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(data_, other.data_);
    std::swap(length_bytes_, other.length_bytes_);
  }
  std::shared_ptr<const DeviceHeap> heap_;  // shared: buffers may outlive who made them
  unsigned char* data_ = nullptr;
  uint64_t length_bytes_ = 0;
};

/// Threads: safe.
class DeviceHeap : public std::enable_shared_from_this<DeviceHeap> {
 public:
  static Result<std::shared_ptr<DeviceHeap>> Make(int device);

  int device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Usable from any stream at once. kResourceExhausted names the device and what it has left.
  Result<DeviceBuffer> Allocate(uint64_t length_bytes) const;
  /// Makes the buffer at least this long; what it held is lost.
  Result<void> Grow(DeviceBuffer& buffer, uint64_t length_bytes) const;
  /// What Allocate could get now, about.
  Result<uint64_t> FreeBytes() const;

 private:
  friend class DeviceBuffer;
  explicit DeviceHeap(int device) : device_(device) {}
  const int device_;
  int multiprocessors_ = 0;
  Stream stream_;
};

/// Page-locked host memory of the process, for tables and small results. Ownership: move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { Swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    PinnedBuffer(std::move(other)).Swap(*this);
    return *this;
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) Ignore(cudaFreeHost(data_));
    for (std::byte* const memory : outgrown_) Ignore(cudaFreeHost(memory));
  }

  /// Makes it at least this long, with room to spare; what it held is lost. What it outgrows is
  /// kept until the end, as giving page-locked memory back waits for the whole device; so it takes
  /// at most twice its length.
  Result<void> Grow(uint64_t length_bytes);
  std::byte* data() const { return data_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void Swap(PinnedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(length_bytes_, other.length_bytes_);
    outgrown_.swap(other.outgrown_);
  }
  std::byte* data_ = nullptr;
  uint64_t length_bytes_ = 0;
  std::vector<std::byte*> outgrown_;
};

}  // namespace cairn::cuda::internal
