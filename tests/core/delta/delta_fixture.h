#pragma once
/// Two versions of a chunk, encoded and decoded page by page, as a save and a load do.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/codec/internal/delta.h"
#include "core/codec/internal/delta_encoder.h"
#include "kv/base/digest.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {

using Bytes = std::vector<std::byte>;

inline constexpr uint64_t kNoLimit = UINT64_MAX;

inline Bytes RandomBytes(testing::SeededRandom& random, size_t count) {
  Bytes bytes(count);
  random.Fill(bytes);
  return bytes;
}

template <typename T>
Bytes ToBytes(const std::vector<T>& elements) {
  const auto bytes = std::as_bytes(std::span(elements));
  return {bytes.begin(), bytes.end()};
}

inline std::span<const std::byte> PageOf(const Bytes& chunk, uint64_t page) {
  return std::span(chunk).subspan(page * kv::kPageBytes, DeltaPageLength(page, chunk.size()));
}

/// Returns the delta of `chunk` relative to `base`, or nothing if it is longer than `max_bytes`.
inline std::optional<Bytes> Encode(DeltaEncoder& encoder, uint32_t element_bytes, const Bytes& base,
                                   const Bytes& chunk, uint64_t max_bytes = kNoLimit) {
  encoder.Begin(element_bytes, chunk.size());
  for (uint64_t i = 0; i < kv::PageCount(chunk.size()); ++i) {
    encoder.AddPage(PageOf(base, i), PageOf(chunk, i));
  }
  std::vector<uint64_t> page_digests;
  kv::AppendPageDigests(chunk, page_digests);
  const auto delta = encoder.Finish(page_digests, max_bytes);
  if (!delta) return std::nullopt;
  return Bytes(delta->begin(), delta->end());
}
inline Bytes Encode(uint32_t element_bytes, const Bytes& base, const Bytes& chunk) {
  DeltaEncoder encoder;
  return *Encode(encoder, element_bytes, base, chunk);
}

/// Applies all pages of a delta to a copy of `base`.
inline Result<Bytes> Decode(const Bytes& delta, const Bytes& base) {
  CAIRN_TRY_ASSIGN(const Delta parsed, Delta::Parse(delta, base.size()));
  Bytes chunk = base;
  for (uint64_t i = 0; i < parsed.page_count(); ++i) {
    const uint64_t page_bytes = DeltaPageLength(i, chunk.size());
    CAIRN_TRY(parsed.Apply(i, std::span(chunk).subspan(i * kv::kPageBytes, page_bytes)));
  }
  return chunk;
}

/// Returns random bfloat16 numbers with the distribution of weights.
inline std::vector<uint16_t> RandomWeights(testing::SeededRandom& random, size_t count) {
  std::vector<uint16_t> weights(count);
  for (uint16_t& weight : weights) {
    const auto bits = static_cast<uint16_t>(random.Between(0, UINT16_MAX));
    // A geometric distribution of the exponent, at most 2^-6, and a random sign and mantissa.
    uint16_t exponent = 121;
    while (exponent > 100 && random.Chance(0.5)) --exponent;
    weight = static_cast<uint16_t>((bits & 0x807f) | exponent << 7);
  }
  return weights;
}

/// Returns `base` with about `density` of its elements changed, most of them by one.
template <typename T>
std::vector<T> Changed(testing::SeededRandom& random, const std::vector<T>& base, double density) {
  std::vector<T> changed = base;
  for (T& element : changed) {
    if (!random.Chance(density)) continue;
    switch (random.Between(0, 9)) {
      case 0:
        element = static_cast<T>(random.Between(0, UINT64_MAX));
        break;
      case 1:
        element = static_cast<T>(element + random.Between(0, 600) - 300);
        break;
      default:
        element = static_cast<T>(element + (random.Chance(0.5) ? 1 : -1));
    }
  }
  return changed;
}

}  // namespace cairn::core::internal
