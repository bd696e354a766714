// Address ranges of devices and of page-locked memory.
#include "tests/support/simulated_cuda/memory_registry.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kv/base/div.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define CAIRN_POISON(address, bytes) ASAN_POISON_MEMORY_REGION(address, bytes)
#define CAIRN_UNPOISON(address, bytes) ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#else
#define CAIRN_POISON(address, bytes) ((void)(address), (void)(bytes))
#define CAIRN_UNPOISON(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace cairn::simulated_cuda {
namespace {

// ThreadSanitizer finds missing waits between copies and kernels only if both use the same
// addresses, which then cannot be made inaccessible to the host.
#if defined(__SANITIZE_THREAD__)
constexpr bool kOneAddress = true;
#else
constexpr bool kOneAddress = false;
#endif

constexpr unsigned char kGapByte = 0xC7;
constexpr uint64_t kHugePageBytes = 2ull << 20;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "simulated CUDA: %s\n", what);
  std::abort();
}

}  // namespace

// Four times the capacity, so that addresses are not reused soon, and room for gaps.
DeviceArena::DeviceArena(int device, uint64_t capacity_bytes)
    : capacity_bytes_(capacity_bytes),
      reserved_bytes_(RoundUp(4 * capacity_bytes + (64ull << 20), kHugePageBytes)) {
  char name[32];
  std::snprintf(name, sizeof name, "simulated-gpu-%d", device);
  file_ = memfd_create(name, MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(reserved_bytes_)) != 0) {
    Die("no memory file for a device");
  }
  const auto map = [&](int protection) {
    return mmap(nullptr, reserved_bytes_, protection, MAP_SHARED | MAP_NORESERVE, file_, 0);
  };
  void* const alias = map(PROT_READ | PROT_WRITE);
  void* const base = kOneAddress ? alias : map(PROT_NONE);
  if (base == MAP_FAILED || alias == MAP_FAILED) Die("no addresses for a device");
  base_ = reinterpret_cast<uintptr_t>(base);
  alias_ = static_cast<std::byte*>(alias);
}

DeviceArena::~DeviceArena() {
  CAIRN_UNPOISON(reinterpret_cast<void*>(base_), cursor_bytes_);
  munmap(reinterpret_cast<void*>(base_), reserved_bytes_);
  if (!kOneAddress) munmap(alias_, reserved_bytes_);
  close(file_);
}

// The bytes up to the alignment belong to the gap too.
uint64_t DeviceArena::GapAfter(uint64_t size_bytes) const {
  return RoundUp(size_bytes, kAlignmentBytes) - size_bytes + kGapBytes;
}

uintptr_t DeviceArena::Allocate(uint64_t size_bytes) {
  const uint64_t needed = size_bytes + GapAfter(size_bytes);
  // Next fit: from the cursor to the end, then once from the beginning.
  uint64_t offset = cursor_bytes_;
  for (int round = 0; round < 2; ++round, offset = 0) {
    auto next = taken_.lower_bound(offset);
    if (next != taken_.begin()) offset = std::max(offset, std::prev(next)->second);
    while (next != taken_.end() && next->first - offset < needed) {
      offset = next->second;
      ++next;
    }
    if (offset + needed <= reserved_bytes_) break;
    if (round == 1) return 0;
  }
  taken_.emplace(offset, offset + needed);
  cursor_bytes_ = offset + needed;
  used_bytes_ += size_bytes;
  const uintptr_t start = base_ + offset;
  CAIRN_UNPOISON(reinterpret_cast<void*>(start), size_bytes);
  CAIRN_POISON(reinterpret_cast<void*>(start + size_bytes), GapAfter(size_bytes));
  std::memset(Alias(start), kFreshByte, size_bytes);
  std::memset(Alias(start + size_bytes), kGapByte, GapAfter(size_bytes));
  return start;
}

void DeviceArena::Free(uintptr_t start, uint64_t size_bytes) {
  const auto* const gap = reinterpret_cast<const unsigned char*>(Alias(start + size_bytes));
  for (uint64_t i = 0; i < GapAfter(size_bytes); ++i) {
    if (gap[i] != kGapByte) Die("a kernel wrote beyond the end of an allocation that is freed now");
  }
  std::memset(Alias(start), kFreedByte, size_bytes);
  CAIRN_POISON(reinterpret_cast<void*>(start), size_bytes);
  // Complete pages are returned to the system: later reads see zeros there.
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t first = RoundUp(start - base_, kPageBytes);
  const uint64_t last = (start - base_ + size_bytes) / kPageBytes * kPageBytes;
  if (first < last) madvise(alias_ + first, last - first, MADV_REMOVE);
  taken_.erase(start - base_);
  used_bytes_ -= size_bytes;
}

void DeviceArena::BeginKernel() {
  const std::lock_guard lock(kernel_mutex_);
  if (kernel_count_++ > 0 || kOneAddress) return;
  mprotect(reinterpret_cast<void*>(base_), reserved_bytes_, PROT_READ | PROT_WRITE);
}

void DeviceArena::EndKernel() {
  const std::lock_guard lock(kernel_mutex_);
  if (--kernel_count_ > 0 || kOneAddress) return;
  mprotect(reinterpret_cast<void*>(base_), reserved_bytes_, PROT_NONE);
}

MemoryRegistry::MemoryRegistry(int device_count, uint64_t device_bytes) {
  for (int device = 0; device < device_count; ++device) {
    arenas_.push_back(std::make_unique<DeviceArena>(device, device_bytes));
  }
}

MemoryRegistry::~MemoryRegistry() {
  for (const auto& [start, range] : ranges_) {
    if (range.kind == MemoryKind::kPinned) std::free(reinterpret_cast<void*>(start));
  }
}

void* MemoryRegistry::AllocateDevice(int device, uint64_t size_bytes, uint64_t credit_bytes) {
  const std::lock_guard lock(mutex_);
  DeviceArena& arena = *arenas_[device];
  const uint64_t used = arena.used_bytes() - std::min(credit_bytes, arena.used_bytes());
  if (size_bytes > arena.capacity_bytes() || used > arena.capacity_bytes() - size_bytes) {
    return nullptr;
  }
  const uintptr_t start = arena.Allocate(size_bytes);
  if (start == 0) return nullptr;
  ranges_[start] = {MemoryKind::kDevice, device, start, size_bytes};
  return reinterpret_cast<void*>(start);
}

bool MemoryRegistry::FreeDevice(void* start) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(start));
  if (found == ranges_.end() || found->second.kind != MemoryKind::kDevice) return false;
  arenas_[found->second.device]->Free(found->first, found->second.size_bytes);
  ranges_.erase(found);
  return true;
}

void* MemoryRegistry::AllocatePinned(int device, uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  void* const memory = std::aligned_alloc(4096, RoundUp(size_bytes, 4096));
  if (memory == nullptr) return nullptr;
  std::memset(memory, kFreshPinnedByte, size_bytes);
  const auto start = reinterpret_cast<uintptr_t>(memory);
  ranges_[start] = {MemoryKind::kPinned, device, start, size_bytes};
  return memory;
}

bool MemoryRegistry::FreePinned(void* start) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(start));
  if (found == ranges_.end() || found->second.kind != MemoryKind::kPinned) return false;
  ranges_.erase(found);
  std::free(start);
  return true;
}

bool MemoryRegistry::Register(int device, void* start, uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(start);
  const auto next = ranges_.upper_bound(address);
  if (FindEntry(address) != nullptr ||
      (next != ranges_.end() && next->first - address < size_bytes)) {
    return false;
  }
  ranges_[address] = {MemoryKind::kRegistered, device, address, size_bytes};
  return true;
}

bool MemoryRegistry::Unregister(void* start) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(start));
  if (found == ranges_.end() || found->second.kind != MemoryKind::kRegistered) return false;
  ranges_.erase(found);
  return true;
}

const MemoryRange* MemoryRegistry::FindEntry(uintptr_t address) const {
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const MemoryRange& range = std::prev(next)->second;
  return address - range.start < range.size_bytes ? &range : nullptr;
}

MemoryRange MemoryRegistry::Find(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  if (const MemoryRange* range = FindEntry(address)) return *range;
  for (int device = 0; device < static_cast<int>(arenas_.size()); ++device) {
    if (arenas_[device]->Owns(address)) return {MemoryKind::kStray, device, address, 0};
  }
  return {};
}

bool MemoryRegistry::InBounds(const void* pointer, uint64_t bytes) const {
  const MemoryRange range = Find(pointer);
  if (range.kind == MemoryKind::kStray) return false;
  if (range.kind == MemoryKind::kPageable) return true;
  return bytes <= range.size_bytes - (reinterpret_cast<uintptr_t>(pointer) - range.start);
}

std::byte* MemoryRegistry::Accessible(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (const auto& arena : arenas_) {
    if (arena->Owns(address)) return arena->Alias(address);
  }
  return reinterpret_cast<std::byte*>(address);
}

uint64_t MemoryRegistry::DeviceUsedBytes(int device) const {
  const std::lock_guard lock(mutex_);
  return arenas_[device]->used_bytes();
}

MemoryRegistry::Totals MemoryRegistry::GetTotals() const {
  const std::lock_guard lock(mutex_);
  Totals totals;
  for (const auto& [start, range] : ranges_) {
    if (range.kind == MemoryKind::kDevice) {
      ++totals.device_count;
      totals.device_bytes += range.size_bytes;
    } else if (range.kind == MemoryKind::kPinned) {
      ++totals.pinned_count;
      totals.pinned_bytes += range.size_bytes;
    } else {
      ++totals.registered_count;
    }
  }
  return totals;
}

}  // namespace cairn::simulated_cuda
