#pragma once
/// Deep, asynchronous file I/O over a bounded pool of aligned blocks.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kv/error.h"

namespace cairn::kv::internal {

/// Blocks of one size, aligned to 4 KiB (large ones to 2 MiB, on huge pages where there are some).
/// Allocated when first needed, kept until the pool goes. Threads: all members are safe.
///
/// Whoever waits in Take must hold no block, or only ones whose return does not depend on others:
/// users take a second block with TryTake and, failing that, first wait for their own I/O.
class BlockPool {
 public:
  BlockPool(uint64_t block_bytes, uint32_t block_count);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  uint64_t block_bytes() const { return block_bytes_; }
  /// Waits for a block. kResourceExhausted: no memory.
  Result<std::byte*> Take();
  /// nullptr if none is free now (or no memory is left).
  std::byte* TryTake();
  void Give(std::byte* block);

 private:
  std::byte* TakeLocked();

  const uint64_t block_bytes_;
  const uint32_t block_count_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::vector<std::byte*> all_;   // guarded by mutex_
  std::vector<std::byte*> free_;  // guarded by mutex_
};

struct IoRequest {
  int fd = -1;
  bool write = false;
  std::byte* data = nullptr;
  uint64_t length_bytes = 0;
  uint64_t offset_bytes = 0;
  uint64_t tag = 0;
};

struct IoCompletion {
  IoRequest request;
  int error_number = 0;
  uint64_t done_bytes = 0;  // less than asked only at the end of the file
};

/// A queue of requests in flight. Short transfers are carried on until done. Threads: one.
/// Destroying it waits for what is in flight, so that no memory is written behind its owner's back.
class IoQueue {
 public:
  /// io_uring where `uring` is asked and the kernel grants it, else a pool of threads.
  static Result<std::unique_ptr<IoQueue>> Make(bool uring, uint32_t depth);
  virtual ~IoQueue() = default;

  /// Requires in_flight() < depth.
  virtual Result<void> Submit(const IoRequest& request) = 0;
  /// Requires in_flight() > 0. kUnavailable: the kernel's queue itself failed.
  virtual Result<IoCompletion> Wait() = 0;
  uint32_t in_flight() const { return in_flight_; }
  uint32_t depth() const { return depth_; }
  virtual const char* name() const = 0;

 protected:
  explicit IoQueue(uint32_t depth) : depth_(depth) {}
  const uint32_t depth_;
  uint32_t in_flight_ = 0;
};

}  // namespace cairn::kv::internal
