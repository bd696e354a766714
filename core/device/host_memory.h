#pragma once
/// Host memory for whole states: pageable, shared with other processes, or (with the CUDA layer)
/// pinned.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "kv/error.h"

namespace cairn::core {

class DeviceBackend;

/// Of which kind memory is. Both false: pageable memory of this process alone.
struct HostMemoryOptions {
  /// Page-locked, as devices copy from it fastest. Needs a device, and the CUDA layer.
  bool pinned = false;
  /// In a memfd, which other processes can map.
  bool shared = false;
};

/// One region, zeroed when it is new. Pages are taken from the system when they are first touched.
///
/// Ownership: move-only; the destructor unmaps. Memory that is shared lives until the last process
/// unmaps it and closes its descriptor. Threads: immutable but for the bytes.
class HostMemory {
 public:
  /// Of no bytes.
  HostMemory() = default;
  /// kResourceExhausted: no memory, or (pinned) the system lets no more be locked. Pinned memory
  /// also as FindDeviceBackend, saying why there is no device; its pages are taken at once.
  static Result<HostMemory> Allocate(uint64_t length_bytes, const HostMemoryOptions& options = {});
  /// The memory that another HostMemory shares; writes are seen on both sides. `descriptor` stays
  /// the caller's. kInvalidArgument: it is not of exactly `length_bytes`, or may still shrink.
  static Result<HostMemory> Map(int descriptor, uint64_t length_bytes);

  HostMemory(HostMemory&& other) noexcept { Swap(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    HostMemory(std::move(other)).Swap(*this);
    return *this;
  }
  ~HostMemory();

  std::span<std::byte> bytes() const { return {data_, length_bytes_}; }
  /// Of shared memory, for children to inherit or SCM_RIGHTS to pass on; closed on exec; -1 for
  /// other memory and for none. Owned by this object.
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
  DeviceBackend* pinned_by_ = nullptr;  // of the process; null: not pinned
};

}  // namespace cairn::core
