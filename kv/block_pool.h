#pragma once
/// A bounded pool of aligned blocks that payload passes through on its way to and from files.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/error.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::kv {

/// Makes memory fit for a device that copies to and from it by itself. Threads: safe.
class PageLocker {
 public:
  virtual ~PageLocker() = default;
  virtual Result<void> Lock(std::span<std::byte> memory) = 0;
  virtual void Unlock(std::span<std::byte> memory) = 0;
};

/// Blocks of one size, aligned to 4 KiB (large ones to 2 MiB, on huge pages where there are some).
/// Allocated when first needed, kept until the pool goes. Threads: all members are safe.
///
/// Whoever waits in Take must hold no block, or only ones whose return does not depend on others:
/// users take a second block with TryTake and, failing that, first wait for their own I/O.
class BlockPool {
 public:
  /// With `locker`, blocks are page-locked, many at a time, and unlocked when the pool goes.
  BlockPool(uint64_t block_bytes, uint32_t block_count,
            std::shared_ptr<PageLocker> locker = nullptr);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  uint64_t block_bytes() const { return block_bytes_; }
  uint32_t block_count() const { return block_count_; }
  /// Waits for a block. kResourceExhausted: there is none and no memory for a first one; names the
  /// bytes that the pool may take.
  Result<std::byte*> Take();
  /// nullptr if none is free now (or no memory is left).
  std::byte* TryTake();
  void Give(std::byte* block);

  /// Allocates some blocks ahead, if there are less than `blocks`. False: there are so many, or as
  /// many as the pool may have or memory lets it; else call it again.
  bool ReserveSome(uint32_t blocks);
  uint64_t allocated_bytes() const;

 private:
  struct Slab {
    std::byte* memory = nullptr;
    uint64_t length_bytes = 0;
  };
  std::byte* TakeLocked() CAIRN_REQUIRES(mutex_);
  bool GrowLocked() CAIRN_REQUIRES(mutex_);

  const uint64_t block_bytes_;
  const uint32_t block_count_;
  const std::shared_ptr<PageLocker> locker_;  // null: pageable; shared by its pools
  mutable Mutex mutex_;
  CondVar given_;
  std::vector<Slab> slabs_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::byte*> free_ CAIRN_GUARDED_BY(mutex_);
  uint32_t allocated_ CAIRN_GUARDED_BY(mutex_) = 0;  // blocks
  // The system has no more memory for the pool, which continues with the blocks that it has.
  bool exhausted_ CAIRN_GUARDED_BY(mutex_) = false;
  std::optional<Error> lock_error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
