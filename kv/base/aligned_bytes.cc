#include "kv/base/aligned_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include "kv/base/div.h"

namespace cairn::kv {

std::byte* MapAligned(uint64_t length_bytes, uint64_t alignment) {
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t kept_bytes = RoundUp(length_bytes, page_bytes);
  // Extra room, so that there is such a multiple.
  const uint64_t room_bytes = alignment > page_bytes ? alignment : 0;
  uint64_t mapped_bytes = 0;
  if (kept_bytes < length_bytes || __builtin_add_overflow(kept_bytes, room_bytes, &mapped_bytes)) {
    return nullptr;
  }
  void* const mapping =
      ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const uint64_t before_bytes = room_bytes == 0 ? 0 : RoundUp(address, alignment) - address;
  auto* const memory = static_cast<std::byte*>(mapping) + before_bytes;
  // If unmapping fails, only address space is wasted, not memory.
  if (before_bytes > 0) (void)::munmap(mapping, before_bytes);
  if (before_bytes < room_bytes) {
    (void)::munmap(memory + kept_bytes, room_bytes - before_bytes);
  }
  return memory;
}

}  // namespace cairn::kv
