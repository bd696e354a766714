#pragma once
/// Memory of a device and page-locked host memory, allocated and freed without blocking the device.
/// cudaMalloc and cudaFree may block it, so the stream-ordered allocator is used, on a stream that
/// carries nothing else.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/stream.h"

namespace cairn::cuda::internal {

class DeviceHeap;

/// Device memory. Ownership: move-only. The destructor frees the memory, so all work that uses it
/// must have ended.
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
  std::shared_ptr<const DeviceHeap>
      heap_;  // shared: a buffer may outlive the queue that allocated it
  unsigned char* data_ = nullptr;
  uint64_t length_bytes_ = 0;
};

/// The memory of one device. Ownership: shared with its buffers. Threads: all members are safe.
class DeviceHeap : public std::enable_shared_from_this<DeviceHeap> {
 public:
  /// kResourceExhausted, kUnavailable: the stream cannot be created.
  static Result<std::shared_ptr<DeviceHeap>> Make(int device);

  int device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Returns memory that any stream may use at once; an empty buffer for 0 bytes.
  /// kResourceExhausted: the message names the device and its free memory.
  Result<DeviceBuffer> Allocate(uint64_t length_bytes) const;
  /// Makes the buffer at least this long. If it has to grow, its contents are lost.
  Result<void> Grow(DeviceBuffer& buffer, uint64_t length_bytes) const;
  /// Returns about how many bytes Allocate could allocate now.
  Result<uint64_t> FreeBytes() const;

 private:
  friend class DeviceBuffer;
  explicit DeviceHeap(int device) : device_(device) {}
  const int device_;
  int multiprocessors_ = 0;
  Stream stream_;
};

/// Page-locked host memory, for tables and small results. Ownership: move-only.
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

  /// Makes the buffer at least this long, rounded up to a power of two. If it has to grow, its
  /// contents are lost. The previous memory is kept until the destructor, because freeing
  /// page-locked memory waits for the complete device. All of it together is less than twice the
  /// current length.
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
