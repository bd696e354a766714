// One anonymous mapping, aligned for huge pages.

#include "python/src/fresh_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "kv/base/div.h"
#include "kv/base/error.h"
#include "kv/base/mapping.h"

namespace cairn::python {

uint64_t FreshMemory::BlockBytes(uint64_t bytes) {
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return RoundUp(bytes, page_bytes);
}

FreshMemory::FreshMemory(uint64_t total_bytes) : left_bytes_(total_bytes) {
  if (total_bytes == 0) return;
  next_ = kv::MapAligned(total_bytes, kv::kHugePageBytes);
  if (next_ == nullptr) throw std::bad_alloc();
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
