#pragma once
// SPDX-License-Identifier: Apache-2.0
/// How long the contents of a zstd frame can be, so that a decoder need not trust a stored length.

#include <cstdint>

namespace cairn::kv {

/// Returns a limit of the length of what a zstd frame of `stored_bytes` contains. A block has a
/// header of 3 bytes, at least one more byte unless it is empty, and at most 128 KiB of contents
/// (RFC 8878, section 3.1.1.2).
constexpr uint64_t MaxZstdContentBytes(uint64_t stored_bytes) {
  constexpr uint64_t kMinBlockBytes = 4;
  constexpr uint64_t kMaxBlockContentBytes = 128 << 10;
  return stored_bytes / kMinBlockBytes * kMaxBlockContentBytes;
}

}  // namespace cairn::kv
