#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Host memory for complete states: pageable, shared with other processes, or (with the CUDA layer)
/// pinned.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "kv/base/error.h"

namespace cairn::core {

class DeviceBackend;

/// The kind of memory. If both are false, it is pageable and private to this process.
struct HostMemoryOptions {
  /// Page-locked memory, from which devices copy fastest. Requires a device and the CUDA layer.
  bool pinned = false;
  /// Memory of a memfd, which other processes can map.
  bool shared = false;
};

/// One region of memory, initially zero. The system provides pages when they are first accessed.
///
/// Ownership: move-only; the destructor unmaps the region. Shared memory exists until the last
/// process unmaps it and closes its descriptor. Threads: safe; only the bytes are mutable.
class HostMemory {
 public:
  /// An empty region.
  HostMemory() = default;
  /// kResourceExhausted: there is not enough memory, or the system does not allow more to be
  /// pinned. Pinned memory, whose pages are allocated at once, also fails with the error of
  /// FindDeviceBackend if there is no device.
  static Result<HostMemory> Allocate(uint64_t length_bytes, const HostMemoryOptions& options = {});
  /// Maps the memory that another HostMemory shares; writes are visible on both sides. The caller
  /// continues to own `descriptor`. kInvalidArgument: the memory does not have exactly
  /// `length_bytes`, or may still shrink.
  static Result<HostMemory> Map(int descriptor, uint64_t length_bytes);

  HostMemory(HostMemory&& other) noexcept { Swap(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    HostMemory(std::move(other)).Swap(*this);
    return *this;
  }
  ~HostMemory();

  std::span<std::byte> bytes() const { return {data_, length_bytes_}; }
  /// The descriptor of shared memory, which children may inherit or SCM_RIGHTS may transfer; -1 for
  /// other memory. It is closed on exec. Owned by this object.
  int descriptor() const { return descriptor_; }

 private:
  void Swap(HostMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(length_bytes_, other.length_bytes_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(pinned_by_, other.pinned_by_);
  }

  std::byte* data_ = nullptr;
  uint64_t length_bytes_ = 0;
  int descriptor_ = -1;
  DeviceBackend* pinned_by_ = nullptr;  // owned by the process; null if not pinned
};

}  // namespace cairn::core
