#pragma once
/// New memory for tensors that are about to be read.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cairn::python {

/// Zeroed memory in one mapping, divided into blocks that are freed separately.
///
/// Uses huge pages if the system has them: touching new memory in pages of 4 KiB costs several
/// times as much as the copy into it. One mapping per block would have small pages at its end, and
/// only small pages if it is below 4 MiB; and the number of mappings of a process is limited.
///
/// Ownership: blocks own their pages and may outlive this object. Threads: one at a time; blocks
/// may be freed on any thread.
class FreshMemory {
 public:
  /// Returns the memory that a block takes: `bytes` rounded up to a multiple of the page size.
  static uint64_t BlockBytes(uint64_t bytes);

  /// Maps `total_bytes`, the sum of BlockBytes of all blocks. Throws std::bad_alloc.
  explicit FreshMemory(uint64_t total_bytes);
  /// Unmaps what was not taken.
  ~FreshMemory();
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;

  /// Returns the next block, which begins at a page boundary, as direct reads require. It is
  /// unmapped with its last reference. Requires that BlockBytes(bytes) of the total are left.
  std::shared_ptr<std::byte> Take(uint64_t bytes);

 private:
  std::byte* next_ = nullptr;
  uint64_t left_bytes_ = 0;
};

}  // namespace cairn::python
