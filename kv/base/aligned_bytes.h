#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Memory at aligned addresses: mappings, and a buffer for records that are read one by one.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace cairn::kv {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

/// Maps `length_bytes` of private memory, which is zero, at a multiple of `alignment`, a power of
/// two that is at least a page. Returns null if there is none. The caller unmaps it with munmap.
std::byte* MapAligned(uint64_t length_bytes, uint64_t alignment);

/// A buffer that is aligned for FlatBuffers and reused. Threads: one.
class AlignedBytes {
 public:
  /// Copies `bytes`. The result is valid until the next call.
  std::span<const std::byte> Assign(std::string_view bytes) {
    words_.resize(bytes.size() / sizeof(uint64_t) + 1);
    if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
    return std::as_bytes(std::span(words_)).first(bytes.size());
  }
  std::span<const std::byte> Assign(std::span<const std::byte> bytes) {
    return Assign(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace cairn::kv
