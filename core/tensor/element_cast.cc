// Every conversion goes through float32, except those to and from float64. The loops have no
// branches, so that the compiler vectorizes them; Highway's foreach_target.h includes this file
// once for every set of vector instructions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/tensor/element_cast.cc"
#include "core/tensor/element_cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
// clang-format off
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>
// clang-format on

#include "core/base/internal/vector_variants.h"
#include "core/tensor/internal/element.h"

#ifndef CAIRN_CORE_TENSOR_ELEMENT_CAST_
#define CAIRN_CORE_TENSOR_ELEMENT_CAST_
namespace cairn::core::internal {

// Intermediate numbers of a conversion, on the stack.
inline constexpr size_t kCastBlock = 1024;

// Returns the bits in float32 of the 8-bit numbers.
template <float (*kConvert)(uint8_t)>
constexpr std::array<uint32_t, 256> MakeFloat8Table() {
  std::array<uint32_t, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = std::bit_cast<uint32_t>(kConvert(static_cast<uint8_t>(i)));
  }
  return table;
}
inline constexpr auto kE4M3 = MakeFloat8Table<Float8E4M3FNToFloat>();
inline constexpr auto kE5M2 = MakeFloat8Table<Float8E5M2ToFloat>();

}  // namespace cairn::core::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::core::internal {
namespace HWY_NAMESPACE {

// Formats: Bits is an element in memory. Widen and Narrow convert to and from bits of a float32.

struct Float32 {
  using Bits = uint32_t;
  static HWY_INLINE uint32_t Widen(Bits bits) { return bits; }
  static HWY_INLINE Bits Narrow(uint32_t bits) { return bits; }
};

struct BFloat16 {
  using Bits = uint16_t;
  static HWY_INLINE uint32_t Widen(Bits bits) { return static_cast<uint32_t>(bits) << 16; }
  static HWY_INLINE Bits Narrow(uint32_t bits) {
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const bool is_nan = (bits & 0x7fff'ffff) > 0x7f80'0000;
    return static_cast<Bits>((is_nan ? bits | 0x40'0000 : rounded) >> 16);
  }
};

struct Float16 {
  using Bits = uint16_t;
  static HWY_INLINE uint32_t Widen(Bits bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t magnitude = bits & 0x7fff;
    const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
    // 2^-14 + mantissa * 2^-24, of which the 2^-14 is subtracted.
    const uint32_t subnormal = std::bit_cast<uint32_t>(
        std::bit_cast<float>((magnitude << 13) + ((127 - 14) << 23)) - 0x1p-14F);
    const uint32_t special =
        (magnitude << 13) | 0x7f80'0000 | (magnitude > 0x7c00 ? 0x40'0000U : 0U);
    const uint32_t finite = magnitude < 0x400 ? subnormal : normal;
    return sign | (magnitude >= 0x7c00 ? special : finite);
  }
  static HWY_INLINE Bits Narrow(uint32_t bits) {
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fff'ffff;
    const uint32_t normal =
        (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // The addition of 0.5, whose last bit is 2^-24, rounds to the subnormal numbers of float16.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f00'0000;
    const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    const uint32_t special = magnitude > 0x7f80'0000 ? nan : 0x7c00;
    const uint32_t finite = magnitude < 0x3880'0000 ? subnormal : normal;
    return static_cast<Bits>(sign | (magnitude >= 0x4780'0000 ? special : finite));
  }
};

struct Float8E4M3 {
  using Bits = uint8_t;
  static HWY_INLINE uint32_t Widen(Bits bits) { return kE4M3[bits]; }
};

struct Float8E5M2 {
  using Bits = uint8_t;
  static HWY_INLINE uint32_t Widen(Bits bits) { return kE5M2[bits]; }
};

// An element of float64 as the bits of a float32, and back.
struct Float64 {
  using Bits = double;
  static HWY_INLINE uint32_t Widen(double value) {
    return std::bit_cast<uint32_t>(static_cast<float>(value));
  }
  static HWY_INLINE double Narrow(uint32_t bits) {
    return static_cast<double>(std::bit_cast<float>(bits));
  }
};

// Widens the elements from `begin` on.
template <class From>
void WidenFrom(size_t begin, const std::byte* source, std::byte* wide, size_t count) {
  for (size_t i = begin; i < count; ++i) {
    typename From::Bits bits;
    std::memcpy(&bits, source + i * sizeof(bits), sizeof(bits));
    const uint32_t widened = From::Widen(bits);
    std::memcpy(wide + i * sizeof(widened), &widened, sizeof(widened));
  }
}

template <class From>
void WidenBlock(const std::byte* source, std::byte* wide, size_t count) {
  WidenFrom<From>(0, source, wide, count);
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
// These processors convert float16 in one instruction, which compilers do not make of
// Float16::Widen. For others, Highway does not convert numbers that are not finite.
template <>
void WidenBlock<Float16>(const std::byte* source, std::byte* wide, size_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  const hn::Half<decltype(bytes)> half_bytes;
  const hn::Half<hn::Repartition<hwy::float16_t, decltype(d)>> half;
  const size_t lanes = hn::Lanes(d);
  const size_t in_vectors = count / lanes * lanes;
  for (size_t i = 0; i < in_vectors; i += lanes) {
    const auto* const from = reinterpret_cast<const uint8_t*>(source + i * sizeof(uint16_t));
    const auto numbers = hn::PromoteTo(d, hn::BitCast(half, hn::LoadU(half_bytes, from)));
    hn::StoreU(hn::BitCast(bytes, numbers), bytes, reinterpret_cast<uint8_t*>(wide + i * 4));
  }
  WidenFrom<Float16>(in_vectors, source, wide, count);
}
#endif

template <class From, class To>
void Cast(const std::byte* source, std::byte* target, uint64_t count) {
  using In = typename From::Bits;
  using Out = typename To::Bits;
  if constexpr (std::is_same_v<To, Float32>) return WidenBlock<From>(source, target, count);
  uint32_t wide[kCastBlock];
  Out out[kCastBlock];
  while (count > 0) {
    const size_t block = std::min<uint64_t>(count, kCastBlock);
    WidenBlock<From>(source, reinterpret_cast<std::byte*>(wide), block);
    for (size_t i = 0; i < block; ++i) out[i] = To::Narrow(wide[i]);
    std::memcpy(target, out, block * sizeof(Out));
    source += block * sizeof(In);
    target += block * sizeof(Out);
    count -= block;
  }
}

template <class From>
ElementCast FindFrom(schema::DType to) {
  switch (to) {
    case schema::DType::kFloat64:
      return &Cast<From, Float64>;
    case schema::DType::kFloat32:
      return &Cast<From, Float32>;
    case schema::DType::kFloat16:
      return &Cast<From, Float16>;
    case schema::DType::kBFloat16:
      return &Cast<From, BFloat16>;
    default:
      return nullptr;
  }
}

ElementCast Find(schema::DType from, schema::DType to) {
  switch (from) {
    case schema::DType::kFloat64:
      return FindFrom<Float64>(to);
    case schema::DType::kFloat32:
      return FindFrom<Float32>(to);
    case schema::DType::kFloat16:
      return FindFrom<Float16>(to);
    case schema::DType::kBFloat16:
      return FindFrom<BFloat16>(to);
    case schema::DType::kFloat8E4M3FN:
      return FindFrom<Float8E4M3>(to);
    case schema::DType::kFloat8E5M2:
      return FindFrom<Float8E5M2>(to);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cairn::core::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::core::internal {
CAIRN_VECTOR_VARIANTS(Find);
static ElementCast FindBest(schema::DType from, schema::DType to) {
  return CAIRN_BEST_VARIANT(Find)(from, to);
}
}  // namespace cairn::core::internal

namespace cairn::core {

ElementCast FindElementCast(schema::DType from, schema::DType to) {
  return from == to ? nullptr : internal::FindBest(from, to);
}

}  // namespace cairn::core
#endif
