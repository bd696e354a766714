#pragma once
/// Texts and numbers of many small objects, in a few allocations.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <string_view>

namespace cairn::core::internal {

/// Ownership: owns what it returns, which stays at its address until the arena is destroyed.
/// Threads: one at a time.
class Arena {
 public:
  /// Returns a copy, which a NUL character follows in memory.
  std::string_view Copy(std::string_view text) {
    auto* const copy = static_cast<char*>(memory_.allocate(text.size() + 1, 1));
    std::memcpy(copy, text.data(), text.size());
    copy[text.size()] = '\0';
    return {copy, text.size()};
  }
  /// Returns uninitialized numbers.
  std::span<uint64_t> Numbers(size_t count) {
    if (count == 0) return {};
    void* const numbers = memory_.allocate(count * sizeof(uint64_t), alignof(uint64_t));
    return {static_cast<uint64_t*>(numbers), count};
  }

 private:
  std::pmr::monotonic_buffer_resource memory_;
};

}  // namespace cairn::core::internal
