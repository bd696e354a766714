// One anonymous mapping, aligned for huge pages.

#include "python/src/fresh_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "kv/div.h"
#include "kv/error.h"

namespace cairn::python {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

}  // namespace

uint64_t FreshMemory::BlockBytes(uint64_t bytes) {
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return RoundUp(bytes, page_bytes);
}

FreshMemory::FreshMemory(uint64_t total_bytes) : left_bytes_(total_bytes) {
  if (total_bytes == 0) return;
  // Extra room, so that the memory can begin at a multiple of a huge page.
  uint64_t mapped_bytes = 0;
  if (__builtin_add_overflow(total_bytes, kHugePageBytes, &mapped_bytes)) throw std::bad_alloc();
  void* mapping =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const uint64_t before_bytes = RoundUp(address, kHugePageBytes) - address;
  next_ = static_cast<std::byte*>(mapping) + before_bytes;
  // If unmapping fails, only address space is wasted, not memory.
  if (before_bytes > 0) (void)munmap(mapping, before_bytes);
  (void)munmap(next_ + total_bytes, kHugePageBytes - before_bytes);
  (void)madvise(next_, total_bytes, MADV_HUGEPAGE);  // only advice: without it the memory is slower
}

FreshMemory::~FreshMemory() {
  if (left_bytes_ > 0) (void)munmap(next_, left_bytes_);
}

std::shared_ptr<std::byte> FreshMemory::Take(uint64_t bytes) {
  const uint64_t taken_bytes = BlockBytes(bytes);
  CAIRN_CHECK(taken_bytes <= left_bytes_);
  std::byte* begin = next_;
  next_ += taken_bytes;
  left_bytes_ -= taken_bytes;
  return {begin, [taken_bytes](std::byte* block) { (void)munmap(block, taken_bytes); }};
}

}  // namespace cairn::python
