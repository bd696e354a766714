#pragma once
/// Asynchronous file I/O with many requests in flight.

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
  uint64_t done_bytes = 0;  // less than requested only at the end of the file or after an error
};

/// A queue of requests in flight. Short transfers are continued until they are complete. The
/// destructor waits for the requests in flight, so that no memory is written after its owner has
/// freed it. Threads: one.
class IoQueue {
 public:
  /// Uses io_uring if `uring` is set and the kernel allows it, otherwise a pool of threads.
  /// Requires `depth > 0`.
  static Result<std::unique_ptr<IoQueue>> Make(bool uring, uint32_t depth);
  virtual ~IoQueue() = default;

  /// Begins a request. The memory must outlive it. Requires `in_flight() < depth()`. kUnavailable:
  /// the kernel's queue itself failed.
  virtual Result<void> Submit(const IoRequest& request) = 0;
  /// Waits for a request to complete; its own error is in the result. Requires `in_flight() > 0`.
  /// kUnavailable: the kernel's queue itself failed.
  virtual Result<IoCompletion> Wait() = 0;
  /// Returns whether Wait would return without waiting.
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
