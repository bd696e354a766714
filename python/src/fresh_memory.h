#pragma once
/// Memory for tensors that are about to be read.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cairn::python {

/// Zeroed memory in one mapping, handed out in pieces that are given back one by one.
///
/// It is made of huge pages where the system has them: to touch new memory in pages of 4 KiB costs
/// several times what the copy into it costs. A mapping for each piece would end, and for pieces
/// below 4 MiB be, in small pages, and a process may have only so many mappings.
///
/// Ownership: pieces own their pages, whatever becomes of this object. Threads: one; pieces any.
class FreshMemory {
 public:
  /// Memory that a piece takes: whole pages.
  static uint64_t PieceBytes(uint64_t bytes);

  /// `total_bytes`: sum of PieceBytes of all pieces to come. Throws std::bad_alloc.
  explicit FreshMemory(uint64_t total_bytes);
  /// Gives back what was not taken.
  ~FreshMemory();
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;

  /// The next piece, which begins at a page so that direct reads can land in it; unmapped when its
  /// last reference goes. Requires that PieceBytes(bytes) of the total are left.
  std::shared_ptr<std::byte> Take(uint64_t bytes);

 private:
  std::byte* next_ = nullptr;
  uint64_t left_bytes_ = 0;
};

}  // namespace cairn::python
