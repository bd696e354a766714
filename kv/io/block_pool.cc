// Blocks in slabs: one mapping per block or, if pages are locked, one for many blocks. Not malloc:
// before 2.38, glibc does not reuse freed memory for aligned blocks of the same size (bug 14581),
// so that the memory of a process that opens stores again and again grows.

#include "kv/io/block_pool.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "kv/base/div.h"
#include "kv/base/mapping.h"
#include "kv/io/internal/file.h"

namespace cairn::kv {
namespace {

constexpr uint64_t kLockedSlabBytes = 64 << 20;  // locking costs a system call and a driver's lock

void MakeRoom(auto& list, size_t count) {
  if (list.capacity() < count) list.reserve(std::max(count, 2 * list.capacity()));
}

}  // namespace

BlockPool::BlockPool(uint64_t block_bytes, uint32_t block_count, std::shared_ptr<PageLocker> locker)
    : block_bytes_(RoundUp(block_bytes, internal::kDirectAlignBytes)),
      block_count_(block_count),
      locker_(std::move(locker)) {
  CAIRN_CHECK(block_bytes > 0 && block_count > 0);
}

BlockPool::~BlockPool() {
  CAIRN_CHECK(free_.size() == allocated_);  // a block in use would be written after it was freed
  for (const Slab& slab : slabs_) {
    if (locker_ != nullptr) {
      locker_->Unlock({slab.memory, slab.length_bytes});
      ::madvise(slab.memory, slab.length_bytes, MADV_DOFORK);
    }
    ::munmap(slab.memory, slab.length_bytes);
  }
}

bool BlockPool::GrowLocked() {
  if (allocated_ == block_count_ || exhausted_) return false;
  const uint64_t blocks = locker_ == nullptr ? 1
                                             : std::clamp<uint64_t>(kLockedSlabBytes / block_bytes_,
                                                                    1, block_count_ - allocated_);
  // Before the mapping, so that neither the rest nor Give allocates.
  MakeRoom(slabs_, slabs_.size() + 1);
  MakeRoom(free_, allocated_ + blocks);
  const uint64_t alignment =
      block_bytes_ % kHugePageBytes == 0 ? kHugePageBytes : internal::kDirectAlignBytes;
  const uint64_t length_bytes = blocks * block_bytes_;
  std::byte* const memory = MapAligned(length_bytes, alignment);
  if (memory == nullptr) {
    exhausted_ = true;
    return false;
  }
  if (alignment == kHugePageBytes) ::madvise(memory, length_bytes, MADV_HUGEPAGE);
  const Slab slab{memory, length_bytes};
  if (locker_ != nullptr) {
    // A child of fork would copy the locked pages, or leave the parent with other pages than those
    // to which the device writes.
    ::madvise(memory, length_bytes, MADV_DONTFORK);
    if (auto locked = locker_->Lock({slab.memory, slab.length_bytes}); !locked) {
      ::madvise(memory, length_bytes, MADV_DOFORK);
      ::munmap(memory, length_bytes);
      exhausted_ = true;
      lock_error_ = std::move(locked).error();
      return false;
    }
  }
  slabs_.push_back(slab);
  allocated_ += static_cast<uint32_t>(blocks);
  for (uint64_t i = blocks; i > 0; --i) free_.push_back(slab.memory + (i - 1) * block_bytes_);
  return true;
}

std::byte* BlockPool::TakeLocked() {
  if (free_.empty() && !GrowLocked()) return nullptr;
  std::byte* block = free_.back();
  free_.pop_back();
  return block;
}

Result<std::byte*> BlockPool::Take() {
  const MutexLock lock(mutex_);
  while (true) {
    if (std::byte* block = TakeLocked()) return block;
    if (allocated_ == 0) {
      exhausted_ = false;  // a later call tries again
      return Fail(
          ErrorCode::kResourceExhausted,
          fmt::format("no memory for a block of {} bytes, of a budget of {} bytes{}", block_bytes_,
                      block_bytes_ * block_count_, lock_error_ ? ": " + lock_error_->message : ""));
    }
    while (free_.empty()) given_.Wait(mutex_);
  }
}

std::byte* BlockPool::TryTake() {
  const MutexLock lock(mutex_);
  return TakeLocked();
}

void BlockPool::Give(std::byte* block) {
  CAIRN_CHECK(block != nullptr);
  {
    const MutexLock lock(mutex_);
    free_.push_back(block);
  }
  given_.NotifyOne();
}

bool BlockPool::ReserveSome(uint32_t blocks) {
  const MutexLock lock(mutex_);
  return allocated_ < blocks && GrowLocked();
}

uint64_t BlockPool::allocated_bytes() const {
  const MutexLock lock(mutex_);
  return allocated_ * block_bytes_;
}

}  // namespace cairn::kv
