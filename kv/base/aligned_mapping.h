#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Anonymous memory that begins at a multiple of a huge page.

#include <cstddef>
#include <cstdint>

namespace cairn::kv {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

/// Maps `length_bytes` of private memory, which is zero, at a multiple of `alignment`, a power of
/// two that is at least a page. Returns null if there is none. The caller unmaps it with munmap.
std::byte* MapAligned(uint64_t length_bytes, uint64_t alignment);

}  // namespace cairn::kv
