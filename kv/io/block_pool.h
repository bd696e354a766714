#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A bounded pool of aligned blocks that payload passes through on its way to and from files.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"

namespace cairn::kv {

/// Page-locks memory, so that a device can copy to and from it directly. Threads: safe.
class PageLocker {
 public:
  virtual ~PageLocker() = default;
  virtual Result<void> Lock(std::span<std::byte> memory) = 0;
  virtual void Unlock(std::span<std::byte> memory) = 0;
};

/// Blocks of one size, aligned to 4 KiB (blocks of whole huge pages to 2 MiB, on huge pages if the
/// system has any). They are allocated when they are first needed and kept until the pool is
/// destroyed. Threads: all members are safe.
///
/// A thread that waits in Take must not hold a block whose return depends on other threads. Users
/// therefore take a second block with TryTake and, if there is none, first wait for their own I/O.
class BlockPool {
 public:
  /// `block_bytes` is rounded up to 4 KiB. With `locker`, blocks are page-locked, many at a time,
  /// and unlocked when the pool is destroyed. Requires `block_bytes > 0` and `block_count > 0`.
  BlockPool(uint64_t block_bytes, uint32_t block_count,
            std::shared_ptr<PageLocker> locker = nullptr);
  /// Requires that every block has been returned.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  uint64_t block_bytes() const { return block_bytes_; }
  uint32_t block_count() const { return block_count_; }
  /// Waits for a block. kResourceExhausted: there is not enough memory for even one block; the
  /// message states how many bytes the pool may allocate.
  Result<std::byte*> Take();
  /// Returns null if no block is free and none can be allocated. Does not wait.
  std::byte* TryTake();
  /// Returns a block to the pool. Requires a block from Take or TryTake.
  void Give(std::byte* block);

  /// Allocates some blocks ahead of their use, if the pool has fewer than `blocks`. Returns true if
  /// it allocated any; call it again until it returns false.
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
  const std::shared_ptr<PageLocker> locker_;  // null: pageable memory; shared with other pools
  mutable Mutex mutex_;
  CondVar given_;
  std::vector<Slab> slabs_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::byte*> free_ CAIRN_GUARDED_BY(mutex_);
  uint32_t allocated_ CAIRN_GUARDED_BY(mutex_) = 0;  // blocks
  // The system has no more memory for the pool, which continues to use the blocks that it has.
  bool exhausted_ CAIRN_GUARDED_BY(mutex_) = false;
  std::optional<Error> lock_error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
