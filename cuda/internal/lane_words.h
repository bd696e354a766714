#pragma once
/// The bytes of a page that one lane of a warp processes at a time. Only for .cu files.

#include <cuda_runtime.h>

#include <cstdint>

namespace cairn::cuda::internal {

inline constexpr uint32_t kLaneBytes = 16;

__device__ __forceinline__ uint64_t LoadBytes(const unsigned char* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}
__device__ __forceinline__ uint64_t Load64(const unsigned char* bytes) {
  if (reinterpret_cast<uintptr_t>(bytes) % 8 == 0) return *reinterpret_cast<const uint64_t*>(bytes);
  return LoadBytes(bytes, 8);
}

/// Bytes of a page, as two little-endian words.
struct Words {
  uint64_t low = 0;
  uint64_t high = 0;
};

/// Loads `count` bytes, at most 16. Pages of tensors are read once, so they bypass the cache.
template <bool kAligned>
__device__ __forceinline__ Words LoadWords(const unsigned char* bytes, uint32_t count) {
  if (count == kLaneBytes) {
    if constexpr (kAligned) {
      const ulonglong2 value = __ldcs(reinterpret_cast<const ulonglong2*>(bytes));
      return {value.x, value.y};
    } else {
      return {Load64(bytes), Load64(bytes + 8)};
    }
  }
  Words words;
  words.low = LoadBytes(bytes, static_cast<int>(count < 8 ? count : 8));
  if (count > 8) words.high = LoadBytes(bytes + 8, static_cast<int>(count - 8));
  return words;
}

template <bool kAligned>
__device__ __forceinline__ void StoreWords(unsigned char* bytes, const Words& words,
                                           uint32_t count) {
  if (kAligned && count == kLaneBytes) {
    *reinterpret_cast<ulonglong2*>(bytes) = {words.low, words.high};
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<unsigned char>((i < 8 ? words.low : words.high) >> (i % 8 * 8));
  }
}

template <typename T>
__device__ __forceinline__ T ElementOf(const Words& words, uint32_t index) {
  const uint32_t byte = index * static_cast<uint32_t>(sizeof(T));
  return static_cast<T>((byte < 8 ? words.low : words.high) >> (byte % 8 * 8));
}

}  // namespace cairn::cuda::internal
