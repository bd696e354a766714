#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Reads and writes of payload with many requests in flight. kv/io/internal/block_io.h makes queues
/// for files, Storage::MakeQueue for objects that are not files.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::kv {

class Upload;

/// Memory that a part of a read fills. Null: the bytes are read and discarded.
struct IoSlice {
  std::byte* data = nullptr;
  uint64_t length_bytes = 0;
};

/// A transfer between memory and a file (`fd`), from an object (`object`), or to an object
/// (`upload`). Exactly one of the three is set.
struct IoRequest {
  int fd = -1;
  std::string_view object;   // a name; the characters must outlive the request
  Upload* upload = nullptr;  // outlives the request
  bool write = false;
  std::byte* data = nullptr;
  /// If not empty: filled one after another by a read, instead of `data`. Their lengths are
  /// `length_bytes` together. The slices must outlive the request. Requires IoQueue::can_scatter.
  std::span<const IoSlice> slices;
  uint64_t length_bytes = 0;
  uint64_t offset_bytes = 0;
  uint64_t tag = 0;
};

struct IoCompletion {
  IoRequest request;
  int error_number = 0;        // errno of an operation on a file
  std::optional<Error> error;  // error of an operation on an object
  uint64_t done_bytes = 0;     // less than requested only at the end of the file or after an error
};

/// A queue of requests in flight. Short transfers are continued until they are complete. The
/// destructor waits for the requests in flight, so that no memory is written after its owner has
/// freed it. Threads: one.
class IoQueue {
 public:
  virtual ~IoQueue() = default;

  /// Begins a request. The memory must outlive it. Requires `in_flight() < depth()`. kUnavailable:
  /// the queue itself failed.
  virtual Result<void> Submit(const IoRequest& request) = 0;
  /// Waits for a request to complete; its own error is in the result. Requires `in_flight() > 0`.
  /// kUnavailable: the queue itself failed.
  virtual Result<IoCompletion> Wait() = 0;
  /// Returns whether Wait would return without waiting.
  virtual bool HasCompletion() = 0;
  uint32_t in_flight() const { return in_flight_; }
  uint32_t depth() const { return depth_; }
  /// Returns whether another user can have the queue: nothing is in flight, and it never failed.
  virtual bool is_reusable() const { return false; }
  /// Returns whether reads may have slices.
  virtual bool can_scatter() const { return false; }
  virtual const char* name() const = 0;

 protected:
  explicit IoQueue(uint32_t depth) : depth_(depth) {}
  const uint32_t depth_;
  uint32_t in_flight_ = 0;
};

}  // namespace cairn::kv
