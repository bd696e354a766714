#pragma once
/// The memory that the simulated runtime knows: device memory, and page-locked host memory.
///
/// The memory of a device is mapped twice: at the addresses that callers of CUDA receive, where the
/// pages are accessible only while a kernel runs on that device, and at addresses that only the
/// copies of the simulation use. A host that accesses device memory crashes, as with a GPU. (With
/// ThreadSanitizer both are the same mapping, which is always accessible.)

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace cairn::simulated_cuda {

enum class MemoryKind {
  kPageable,  // not in the registry
  kDevice,
  kPinned,      // from cudaHostAlloc
  kRegistered,  // from cudaHostRegister
  kStray,       // addresses of a device that are not, or no longer, allocated
};

/// The allocation that contains an address.
struct MemoryRange {
  MemoryKind kind = MemoryKind::kPageable;
  int device = 0;
  uintptr_t start = 0;      // of the allocation
  uint64_t size_bytes = 0;  // of the allocation
};

/// The address range of one device.
/// Threads: Alias, BeginKernel and EndKernel are safe; all else requires the lock of the registry.
class DeviceArena {
 public:
  /// Reserves addresses for `capacity_bytes` and the gaps between allocations.
  DeviceArena(int device, uint64_t capacity_bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  /// Returns the address of new memory, filled with kFreshByte; 0 if there is no room.
  uintptr_t Allocate(uint64_t size_bytes);
  /// Frees memory. Ends the process if a kernel has written beyond the allocation.
  void Free(uintptr_t start, uint64_t size_bytes);

  bool Owns(uintptr_t address) const {
    return address >= base_ && address - base_ < reserved_bytes_;
  }
  /// Returns the address at which the simulation accesses the byte at `address`.
  std::byte* Alias(uintptr_t address) const { return alias_ + (address - base_); }

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }

  /// Pages are accessible while at least one kernel is running.
  void BeginKernel();
  void EndKernel();

 private:
  static constexpr uint64_t kAlignmentBytes = 256;  // as in cudaMalloc
  static constexpr uint64_t kGapBytes = 256;        // between allocations, with known contents

  uint64_t GapAfter(uint64_t size_bytes) const;

  const uint64_t capacity_bytes_;
  const uint64_t reserved_bytes_;
  int file_ = -1;
  uintptr_t base_ = 0;
  std::byte* alias_ = nullptr;
  uint64_t used_bytes_ = 0;
  uint64_t cursor_bytes_ = 0;           // where to search next, so that addresses are reused late
  std::map<uint64_t, uint64_t> taken_;  // offset -> end, gaps included
  std::mutex kernel_mutex_;
  int kernel_count_ = 0;
};

/// All known memory. Threads: all members are safe.
class MemoryRegistry {
 public:
  MemoryRegistry(int device_count, uint64_t device_bytes);
  ~MemoryRegistry();
  MemoryRegistry(const MemoryRegistry&) = delete;
  MemoryRegistry& operator=(const MemoryRegistry&) = delete;

  /// Returns null if the device has less than that left. `credit_bytes`: bytes that count as free
  /// although they are not freed yet.
  void* AllocateDevice(int device, uint64_t size_bytes, uint64_t credit_bytes = 0);
  bool FreeDevice(void* start);

  void* AllocatePinned(int device, uint64_t size_bytes);
  bool FreePinned(void* start);
  /// Returns false if a part of the memory is known already.
  bool Register(int device, void* start, uint64_t size_bytes);
  bool Unregister(void* start);

  MemoryRange Find(const void* address) const;
  /// Returns true if [address, address + bytes) is within one allocation, or is pageable memory.
  bool InBounds(const void* address, uint64_t bytes) const;

  /// Returns the address at which the simulation accesses the byte at `address`.
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

  std::vector<std::unique_ptr<DeviceArena>> arenas_;

  mutable std::mutex mutex_;
  std::map<uintptr_t, MemoryRange> ranges_;  // by start
};

}  // namespace cairn::simulated_cuda
