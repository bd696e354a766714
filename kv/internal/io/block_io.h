#pragma once
/// Deep, asynchronous file I/O.

#include <cstdint>
#include <memory>

#include "kv/error.h"

namespace cairn::kv::internal {

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
  /// True if Wait would find a request that has ended.
  virtual bool HasCompletion() = 0;
  uint32_t in_flight() const { return in_flight_; }
  uint32_t depth() const { return depth_; }
  virtual const char* name() const = 0;

 protected:
  explicit IoQueue(uint32_t depth) : depth_(depth) {}
  const uint32_t depth_;
  uint32_t in_flight_ = 0;
};

}  // namespace cairn::kv::internal
