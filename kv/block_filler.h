#pragma once
/// Payload that something else than the caller brings into the writer's blocks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kv/error.h"

namespace cairn::kv {

/// Brings payload that is not in host memory into the writer's blocks, behind its back.
/// Threads: one at a time.
class BlockFiller {
 public:
  virtual ~BlockFiller() = default;
  /// `target`, which lies between parts that are being brought, becomes zero.
  virtual Result<void> Zero(std::span<std::byte> target) = 0;
  /// A mark behind all that was started.
  virtual Result<uint64_t> Seal() = 0;
  /// True once all before the mark is in place.
  virtual Result<bool> Arrived(uint64_t mark) = 0;
  /// Waits for it.
  virtual Result<void> Await(uint64_t mark) = 0;
  /// After an error: drops what has not begun and waits until nothing is brought any more.
  virtual void Stop() = 0;

  /// True if payload can go to `fd`, a file that was just made for direct I/O, without a block
  /// (StepWriter::Fill::write); then CloseFile follows.
  virtual Result<bool> OpenFile(int fd, const std::string& path) {
    (void)fd, (void)path;
    return false;
  }
  /// Waits for all writes to the file that have begun. Errors: the first of theirs. These two may
  /// run on another thread than what writes to a next file meanwhile.
  virtual Result<void> AwaitFile(int fd) {
    (void)fd;
    return {};
  }
  /// Drops what has not begun, waits for the rest, and lets go of the file.
  virtual void CloseFile(int fd) { (void)fd; }
};

}  // namespace cairn::kv
