#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The interface of an accelerator: asynchronous copies to and from its memory, page digests that
/// are computed where the bytes are, and host memory for complete states, pageable or pinned.
///
/// core does not depend on CUDA. The CUDA layer registers itself (cuda/backend.h). Without it, and
/// on machines without a GPU, FindDeviceBackend returns an error with the reason, and everything
/// works for tensors in host memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"
#include "kv/base/error.h"

namespace cairn::core {

/// A stream of the caller: for CUDA a cudaStream_t, or null for the default stream of the device.
struct DeviceStream {
  int device = 0;
  void* stream = nullptr;
};

/// Uninitialized memory of one device. Ownership: shared by its copies; the last one frees it.
/// Threads: safe; immutable.
class DeviceMemory {
 public:
  /// No memory.
  DeviceMemory() = default;
  DeviceMemory(std::shared_ptr<std::byte> memory, uint64_t length_bytes)
      : memory_(std::move(memory)), length_bytes_(length_bytes) {}

  std::byte* data() const { return memory_.get(); }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data());
  }
  uint64_t length_bytes() const { return length_bytes_; }

 private:
  std::shared_ptr<std::byte> memory_;
  uint64_t length_bytes_ = 0;
};

/// Payload whose pages a device digests: a chunk of a tensor in device memory.
struct DigestJob {
  TensorView source;
  uint64_t begin_bytes = 0;  // in the row-major form of `source`
  uint64_t length_bytes = 0;
  static constexpr uint64_t kNoBase = UINT64_MAX;
  /// Index of the first page of this payload in the base digests, or kNoBase.
  uint64_t base_page = kNoBase;
};

/// A point in the work of a queue, which may outlive the queue. Threads: safe.
class DeviceFence {
 public:
  virtual ~DeviceFence() = default;
  /// Blocks the calling thread until the device has reached the point.
  virtual Result<void> Await() const = 0;
  /// Returns whether the device has reached the point. Does not wait.
  virtual Result<bool> Passed() const = 0;
  /// Makes all work that is enqueued on `stream` from now on run after the point. Does not wait.
  virtual Result<void> MakeStreamWait(void* stream) const = 0;
};

/// An ordered queue of work on one device, which runs concurrently with the caller's streams.
/// Members enqueue and return, unless they are documented to wait.
///
/// Errors: kResourceExhausted names the budget that is used up, or the memory that is missing;
/// kUnavailable: the device has failed. Requires tensors in the memory of the device: after an
/// access to a wrong address, every later CUDA call fails.
/// Threads: one call at a time. The destructor waits for the enqueued work.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  virtual int device() const = 0;

  /// Makes all later work of this queue run after the work that `stream` contains now.
  virtual Result<void> WaitForStream(void* stream) = 0;

  /// Copies bytes [begin_bytes, begin_bytes + target.size()) of the row-major form of `source`, a
  /// tensor in device memory, to `target` in host memory; if that is not page-locked, the copy is
  /// slow and waits. Small and strided parts are collected and packed on the device until the next
  /// Flush.
  virtual Result<void> CopyOut(const TensorView& source, uint64_t begin_bytes,
                               std::span<std::byte> target) = 0;
  /// Sets `target` to zero, so that parts collected before and after it can be copied together.
  virtual Result<void> ZeroOut(std::span<std::byte> target) = 0;
  /// Copies `source` in host memory to bytes [begin_bytes, begin_bytes + source.size()) of the
  /// row-major form of `target`. `source` must not change until the queue has passed the next
  /// Flush.
  virtual Result<void> CopyIn(std::span<const std::byte> source, const TensorTarget& target,
                              uint64_t begin_bytes) = 0;
  /// Copies parts that are adjacent in host memory with one transfer; copies to the device also
  /// join parts with gaps of less than 64 bytes. Requires host memory in which each range between
  /// two multiples of 2 MiB is one allocation, as in page-locked blocks, because no transfer may
  /// span two allocations. Off by default.
  virtual void JoinHostRanges(bool join) = 0;
  /// Copy within the device: Pack copies row-major bytes [begin_bytes, begin_bytes + count) of
  /// `source` to `target`, and Unpack copies `source` to these bytes of `target`. Small copies are
  /// executed together: requires that no pack between two flushes reads or writes memory that
  /// another pack writes, and likewise for the unpacks.
  virtual Result<void> Pack(const TensorView& source, uint64_t begin_bytes, uint64_t count,
                            std::byte* target) = 0;
  virtual Result<void> Unpack(const std::byte* source, uint64_t count, const TensorTarget& target,
                              uint64_t begin_bytes) = 0;

  /// After an error: discards what was collected and waits for the enqueued work.
  virtual void Reset() = 0;

  /// Starts all collected work, and returns the point after everything that the queue contains now.
  virtual Result<std::shared_ptr<const DeviceFence>> Flush() = 0;

  /// The page digests of all jobs, in their order, bit-identical to kv/base/digest.h. Each job
  /// begins a new page. `changed` has one bit per page, which is set if the job has no base or the
  /// digest differs from the base's digest.
  struct Digests {
    DeviceMemory page_digests;      // a uint64_t per page; never written again
    std::vector<uint64_t> changed;  // bit p % 64 of word p / 64

    bool IsChanged(uint64_t page) const { return changed[page / 64] >> (page % 64) & 1; }
  };
  /// Digests the pages of `jobs`. `base` has page digests of the same device, or nothing if no job
  /// has a base. Waits for the result.
  virtual Result<Digests> Digest(std::span<const DigestJob> jobs, const DeviceMemory& base) = 0;
  struct PageRange {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  /// Copies the digests of `ranges` to the host: one copy of everything from the first to the last.
  /// Waits.
  virtual Result<std::vector<uint64_t>> FetchPageDigests(const DeviceMemory& page_digests,
                                                         std::span<const PageRange> ranges) = 0;
};

/// The accelerators of this process. Threads: all members are safe.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  /// Returns a queue for one user. It is a shared_ptr only because its deleter returns the queue,
  /// with its buffers, to the backend. kInvalidArgument: there is no such device.
  virtual Result<std::shared_ptr<DeviceQueue>> OpenQueue(int device) = 0;
  /// kResourceExhausted: there is not enough memory; names the device and its free memory.
  virtual Result<DeviceMemory> Allocate(int device, uint64_t length_bytes) = 0;
  /// Device memory that Allocate could currently return.
  virtual Result<uint64_t> FreeBytes(int device) = 0;

  /// Page-locks host memory for all devices, so that they copy at the speed of the bus and
  /// asynchronously. Cost: about one second per 1 to 7 GB. kResourceExhausted: the system does not
  /// allow more memory to be locked.
  virtual Result<void> Pin(std::span<std::byte> memory) = 0;
  virtual void Unpin(std::span<std::byte> memory) = 0;
};

/// Returns the backend of this process. kFailedPrecondition: there is no usable GPU.
/// kUnimplemented: this build has no CUDA layer.
Result<DeviceBackend*> FindDeviceBackend();

/// Users of the CUDA layer call this once, before any FindDeviceBackend, which calls `find`. `find`
/// remembers a backend that it has returned.
using DeviceBackendFinder = Result<DeviceBackend*> (*)();
void SetDeviceBackend(DeviceBackendFinder find);

struct HostMemoryOptions {
  /// Page-locked memory, from which devices copy fastest. Requires a device and the CUDA layer.
  bool pinned = false;
};

/// One region of memory, initially zero. The system provides pages when they are first accessed.
///
/// Ownership: move-only; the destructor unmaps the region. Threads: safe; only the bytes are
/// mutable.
class HostMemory {
 public:
  /// An empty region.
  HostMemory() = default;
  /// kResourceExhausted: there is not enough memory, or the system does not allow more to be
  /// pinned. Pinned memory, whose pages are allocated at once, also fails with the error of
  /// FindDeviceBackend if there is no device.
  static Result<HostMemory> Allocate(uint64_t length_bytes, const HostMemoryOptions& options = {});

  HostMemory(HostMemory&& other) noexcept { Swap(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    HostMemory(std::move(other)).Swap(*this);
    return *this;
  }
  ~HostMemory();

  std::span<std::byte> bytes() const { return {data_, length_bytes_}; }

 private:
  void Swap(HostMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(length_bytes_, other.length_bytes_);
    std::swap(pinned_by_, other.pinned_by_);
  }

  std::byte* data_ = nullptr;
  uint64_t length_bytes_ = 0;
  DeviceBackend* pinned_by_ = nullptr;  // owned by the process; null if not pinned
};

}  // namespace cairn::core
