#pragma once
/// Memory that the simulated runtime knows: that of the devices, and page-locked host memory.
///
/// The memory of a device lies twice in the address space: at the addresses that CUDA's callers
/// get, where the pages are open only while a kernel runs on that device, and at addresses that
/// only the simulation's own copies use. A host that touches device memory crashes, as with a GPU.
/// (Under ThreadSanitizer both are the same, always open.)

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace cairn::simulated_cuda {

enum class MemoryKind {
  kPageable,  // not known here
  kDevice,
  kPinned,      // of cudaHostAlloc
  kRegistered,  // of cudaHostRegister
  kStray,       // addresses of a device that are not, or no longer, an allocation's
};

/// Where a pointer points to.
struct MemoryRange {
  MemoryKind kind = MemoryKind::kPageable;
  int device = 0;
  unsigned flags = 0;       // of pinned memory
  uintptr_t start = 0;      // of the allocation
  uint64_t size_bytes = 0;  // of the allocation
};

/// The addresses of one device.
/// Threads: Alias and OpenForKernel any; all else under the registry's lock.
class DeviceArena {
 public:
  /// Room for `capacity_bytes` and the gaps between allocations.
  DeviceArena(int device, uint64_t capacity_bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  /// The address of new memory, filled with kFreshByte; 0 if there is no room.
  uintptr_t Allocate(uint64_t size_bytes);
  /// Ends the process if a kernel wrote beyond the allocation.
  void Free(uintptr_t start, uint64_t size_bytes);

  bool Owns(uintptr_t address) const {
    return address >= base_ && address - base_ < reserved_bytes_;
  }
  /// The address at which the simulation itself reads and writes what lies at `address`.
  std::byte* Alias(uintptr_t address) const { return alias_ + (address - base_); }

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }

  /// Pages are open from the first kernel's begin to the last one's end.
  void BeginKernel();
  void EndKernel();

 private:
  static constexpr uint64_t kAlignmentBytes = 256;  // as cudaMalloc's
  static constexpr uint64_t kGapBytes = 256;        // between allocations, with known contents

  uint64_t GapAfter(uint64_t size_bytes) const;

  const uint64_t capacity_bytes_;
  const uint64_t reserved_bytes_;
  int file_ = -1;
  uintptr_t base_ = 0;
  std::byte* alias_ = nullptr;
  uint64_t used_bytes_ = 0;
  uint64_t cursor_bytes_ = 0;           // where to look next: freed addresses come back late
  std::map<uint64_t, uint64_t> taken_;  // offset -> end, gaps included
  std::mutex kernel_mutex_;
  int kernel_count_ = 0;
};

/// All known memory.
/// Threads: any, one lock inside.
class MemoryRegistry {
 public:
  MemoryRegistry(int device_count, uint64_t device_bytes, uint64_t pinned_limit_bytes);
  ~MemoryRegistry();
  MemoryRegistry(const MemoryRegistry&) = delete;
  MemoryRegistry& operator=(const MemoryRegistry&) = delete;

  /// Null if the device has less than that left. `credit_bytes`: what counts as free already.
  void* AllocateDevice(int device, uint64_t size_bytes, uint64_t credit_bytes = 0);
  bool FreeDevice(void* start);

  /// Null beyond the limit.
  void* AllocatePinned(int device, uint64_t size_bytes, unsigned flags);
  bool FreePinned(void* start);
  enum class RegisterResult { kDone, kOverlap, kLimit };
  RegisterResult Register(int device, void* start, uint64_t size_bytes, unsigned flags);
  bool Unregister(void* start);

  MemoryRange Find(const void* address) const;
  /// True if [address, address + bytes) lies within one allocation, or is pageable memory.
  bool InBounds(const void* address, uint64_t bytes) const;

  /// Where the simulation reads and writes what a caller names by `address`.
  std::byte* Accessible(const void* address) const;

  DeviceArena& arena(int device) const { return *arenas_[device]; }
  uint64_t DeviceUsedBytes(int device) const;

  struct Totals {
    uint64_t device_count = 0, device_bytes = 0;
    uint64_t pinned_count = 0, pinned_bytes = 0;
    uint64_t registered_count = 0;
  };
  Totals GetTotals() const;

 private:
  // Requires the lock.
  const MemoryRange* FindEntry(uintptr_t address) const;
  bool FitsPinned(uint64_t size_bytes) const {
    return size_bytes <= pinned_limit_bytes_ - pinned_bytes_;
  }

  const uint64_t pinned_limit_bytes_;
  std::vector<std::unique_ptr<DeviceArena>> arenas_;

  mutable std::mutex mutex_;
  std::map<uintptr_t, MemoryRange> ranges_;  // by start
  uint64_t pinned_bytes_ = 0;                // registered memory included
};

}  // namespace cairn::simulated_cuda
