#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Payload that is appended to a segment, and the two ways in which its bytes reach the file:
///
///   borrowed  The bytes are contiguous in host memory (Payload::memory) and suitably aligned. The
///             file is written directly from that memory.
///   copied    The bytes are copied to blocks, which are written when they are full. A copy is
///             complete when Payload::CopyTo returns or, if the payload has a CopyQueue, later.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kv/base/error.h"

namespace cairn::kv {

/// Alignment of the first byte of a payload in its segment.
enum class SegmentAlignment {
  kNone,  // directly after the payload before it: the next chunk of the same tensor
  k64,    // start of a tensor
  k4096,  // start of a large shard, as direct I/O requires
};

/// Pages [begin_page, end_page) of a chunk.
struct PageRange {
  uint64_t begin_page = 0;
  uint64_t end_page = 0;
  friend bool operator==(const PageRange&, const PageRange&) = default;
};

/// The bytes of a payload changed while it was appended.
inline Error PayloadChangedError() {
  return {.code = ErrorCode::kInvalidArgument,
          .message =
              "a tensor changed while it was being saved; do not write to tensors until the "
              "save returns, or save asynchronously and wait until the state is staged"};
}

/// Copies that complete after Payload::CopyTo has returned, such as copies from device memory.
///
/// Threads: one at a time; but HasReached and Await may run on another thread concurrently.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  /// Sets `target`, which is between the targets of two copies, to zero.
  virtual Result<void> Zero(std::span<std::byte> target) = 0;
  /// Returns a mark that is reached when all copies that have begun are complete.
  virtual Result<uint64_t> Flush() = 0;
  virtual Result<bool> HasReached(uint64_t mark) = 0;
  /// Waits until the mark is reached. An error means that the device has failed and writes to no
  /// block any more.
  virtual Result<void> Await(uint64_t mark) = 0;
  /// Drops the copies that have not begun and waits for the others; for use after an error.
  virtual void Cancel() = 0;
};

/// The bytes of one chunk. Threads: one at a time.
class Payload {
 public:
  virtual ~Payload() = default;
  virtual uint64_t length_bytes() const = 0;
  /// The bytes, if they are contiguous in host memory and remain unchanged until StepWriter::Drain
  /// or Commit returns or the writer is destroyed. Otherwise empty.
  virtual std::span<const std::byte> memory() const { return {}; }
  /// True if other threads may change the bytes at any time. The writer then digests its copies,
  /// and an append fails with kInvalidArgument if they do not have the digests that were given.
  virtual bool may_change() const { return false; }
  /// The queue of the copies; null if each copy is complete when CopyTo returns. Must outlive the
  /// writer.
  virtual CopyQueue* queue() const { return nullptr; }
  /// Copies bytes [begin_bytes, begin_bytes + target.size()) to `target`, or begins to.
  virtual Result<void> CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const = 0;
};

/// Bytes that are copied while they are appended, and may be released afterwards. Borrows them.
class CopiedBytes final : public Payload {
 public:
  explicit CopiedBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t length_bytes() const override { return bytes_.size(); }
  Result<void> CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const override {
    std::memcpy(target.data(), bytes_.data() + begin_bytes, target.size());
    return {};
  }

 private:
  const std::span<const std::byte> bytes_;
};

}  // namespace cairn::kv
