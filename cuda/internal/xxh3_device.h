#pragma once
/// XXH3-64 with seed 0 and the default secret, for device code: the operations with which a
/// warp digests pages, and the complete hash of short inputs. Only for .cu files.
///
/// Source: the XXH3 specification, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md,
/// and the secret of xxhash.h 0.8.

#include <cuda_runtime.h>

#include <cstdint>

namespace cairn::cuda::internal {

constexpr uint64_t kPrime32A = 0x9E3779B1u;
constexpr uint64_t kPrime32B = 0x85EBCA77u;
constexpr uint64_t kPrime32C = 0xC2B2AE3Du;
constexpr uint64_t kPrime64A = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime64B = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime64C = 0x165667B19E3779F9u;
constexpr uint64_t kPrime64D = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime64E = 0x27D4EB2F165667C5u;
constexpr uint64_t kPrimeMixA = 0x165667919E3779F9u;
constexpr uint64_t kPrimeMixB = 0x9FB21C651E98DF25u;

// extern, because the name of a constant that is internal to a source contains a hash of its path.
alignas(16) extern __constant__ const unsigned char kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

__device__ __forceinline__ uint64_t LoadBytes(const unsigned char* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}
__device__ __forceinline__ uint64_t Load64(const unsigned char* bytes) {
  if (reinterpret_cast<uintptr_t>(bytes) % 8 == 0) return *reinterpret_cast<const uint64_t*>(bytes);
  return LoadBytes(bytes, 8);
}

__device__ __forceinline__ uint64_t Secret64(int at) { return LoadBytes(kSecret + at, 8); }

/// Requires that `at` is a multiple of 8.
__device__ __forceinline__ uint64_t SecretWord(int at) {
  return *reinterpret_cast<const uint64_t*>(kSecret + at);
}

__device__ __forceinline__ uint64_t RotateLeft(uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}
__device__ __forceinline__ uint64_t Swap64(uint64_t value) {
  uint64_t swapped = 0;
  for (int i = 0; i < 8; ++i) swapped |= (value >> (8 * i) & 0xff) << (56 - 8 * i);
  return swapped;
}
__device__ __forceinline__ uint64_t MultiplyFold(uint64_t a, uint64_t b) {
  return a * b ^ __umul64hi(a, b);
}
__device__ __forceinline__ uint64_t Avalanche(uint64_t hash) {
  hash ^= hash >> 37;
  hash *= kPrimeMixA;
  return hash ^ hash >> 32;
}
__device__ __forceinline__ uint64_t Avalanche64(uint64_t hash) {
  hash ^= hash >> 33;
  hash *= kPrime64B;
  hash ^= hash >> 29;
  hash *= kPrime64C;
  return hash ^ hash >> 32;
}
__device__ __forceinline__ uint64_t Mix16(const unsigned char* bytes, int secret) {
  return MultiplyFold(Load64(bytes) ^ Secret64(secret), Load64(bytes + 8) ^ Secret64(secret + 8));
}
/// Returns what 8 bytes add to their accumulator. The bytes themselves are added to the
/// neighbouring accumulator.
__device__ __forceinline__ uint64_t Product(uint64_t value, uint64_t key) {
  const uint64_t keyed = value ^ key;
  return static_cast<uint64_t>(static_cast<uint32_t>(keyed)) * (keyed >> 32);
}
__device__ __forceinline__ uint64_t Scramble(uint64_t sum, uint64_t key) {
  return (sum ^ sum >> 47 ^ key) * kPrime32A;
}

/// Returns the hash of 1 to 240 bytes, computed by one thread.
__device__ inline uint64_t HashShort(const unsigned char* data, uint64_t length) {
  if (length <= 3) {
    const uint64_t first = data[0];
    const uint64_t middle = data[length >> 1];
    const uint64_t last = data[length - 1];
    const uint64_t combined = first << 16 | middle << 24 | last | length << 8;
    return Avalanche64(combined ^ (LoadBytes(kSecret, 4) ^ LoadBytes(kSecret + 4, 4)));
  }
  if (length <= 8) {
    const uint64_t low = LoadBytes(data + length - 4, 4);
    const uint64_t high = LoadBytes(data, 4);
    uint64_t hash = (low + (high << 32)) ^ (Secret64(8) ^ Secret64(16));
    hash ^= RotateLeft(hash, 49) ^ RotateLeft(hash, 24);
    hash *= kPrimeMixB;
    hash ^= (hash >> 35) + length;
    hash *= kPrimeMixB;
    return hash ^ hash >> 28;
  }
  if (length <= 16) {
    const uint64_t low = Load64(data) ^ (Secret64(24) ^ Secret64(32));
    const uint64_t high = Load64(data + length - 8) ^ (Secret64(40) ^ Secret64(48));
    return Avalanche(length + Swap64(low) + high + MultiplyFold(low, high));
  }
  uint64_t sum = length * kPrime64A;
  if (length <= 128) {
    // From both ends towards the middle.
    const int pairs = static_cast<int>((length - 1) / 32);
    for (int i = pairs; i >= 0; --i) {
      sum += Mix16(data + 16 * i, 32 * i);
      sum += Mix16(data + length - 16 * (i + 1), 32 * i + 16);
    }
    return Avalanche(sum);
  }
  const int rounds = static_cast<int>(length / 16);
  for (int i = 0; i < 8; ++i) sum += Mix16(data + 16 * i, 16 * i);
  sum = Avalanche(sum);
  for (int i = 8; i < rounds; ++i) sum += Mix16(data + 16 * i, 16 * (i - 8) + 3);
  sum += Mix16(data + length - 16, 136 - 17);
  return Avalanche(sum);
}

}  // namespace cairn::cuda::internal
