#pragma once
/// Converts elements of every dtype to C++ numbers. Threads: all functions are safe.

#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "schema/dtype.h"

namespace cairn::core::internal {

/// How a format of floating-point numbers stores infinities and NaN.
enum class SpecialNumbers {
  kAsIeee754,       // the largest exponent
  kOneNan,          // no infinities; all bits but the sign are set in a NaN
  kOneUnsignedNan,  // no infinities and no negative zero, whose bits are the NaN
  kNone,
};

/// Converts a number with one sign bit, exponent and mantissa. A NaN keeps its sign and payload,
/// and is quiet.
template <int kExponentBits, int kMantissaBits, int kBias, SpecialNumbers kSpecial>
constexpr float SmallFloat(uint32_t bits) {
  constexpr uint32_t kMaxExponent = (1U << kExponentBits) - 1;
  constexpr uint32_t kMantissaMask = (1U << kMantissaBits) - 1;
  constexpr uint32_t kMagnitudeMask = kMaxExponent << kMantissaBits | kMantissaMask;
  constexpr float kSmallest = [] {
    float smallest = 1;
    for (int i = 1; i < kBias + kMantissaBits; ++i) smallest /= 2;
    return smallest;
  }();
  const uint32_t sign = (bits & ~kMagnitudeMask) << (31 - kExponentBits - kMantissaBits);
  const uint32_t exponent = (bits & kMagnitudeMask) >> kMantissaBits;
  const uint32_t mantissa = bits & kMantissaMask;
  const uint32_t upper = mantissa << (23 - kMantissaBits);
  const bool is_nan =
      (kSpecial == SpecialNumbers::kAsIeee754 && exponent == kMaxExponent && mantissa != 0) ||
      (kSpecial == SpecialNumbers::kOneNan && (bits & kMagnitudeMask) == kMagnitudeMask) ||
      (kSpecial == SpecialNumbers::kOneUnsignedNan && bits == kMagnitudeMask + 1);
  if (is_nan) return std::bit_cast<float>(sign | 0x7fc0'0000 | upper);
  if (kSpecial == SpecialNumbers::kAsIeee754 && exponent == kMaxExponent) {
    return std::bit_cast<float>(sign | 0x7f80'0000);
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * kSmallest;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 127 - kBias) << 23 | upper);
}

/// Convert IEEE binary16 and bfloat16.
constexpr float HalfToFloat(uint16_t bits) {
  return SmallFloat<5, 10, 15, SpecialNumbers::kAsIeee754>(bits);
}
constexpr float BFloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(bits << 16); }

/// Convert 8-bit floats as defined by the OCP 8-bit Floating Point Specification, and the "fnuz"
/// kinds as defined by https://arxiv.org/abs/2206.02915.
constexpr float Float8E4M3FNToFloat(uint8_t bits) {
  return SmallFloat<4, 3, 7, SpecialNumbers::kOneNan>(bits);
}
constexpr float Float8E4M3FNUZToFloat(uint8_t bits) {
  return SmallFloat<4, 3, 8, SpecialNumbers::kOneUnsignedNan>(bits);
}
constexpr float Float8E5M2ToFloat(uint8_t bits) {
  return SmallFloat<5, 2, 15, SpecialNumbers::kAsIeee754>(bits);
}
constexpr float Float8E5M2FNUZToFloat(uint8_t bits) {
  return SmallFloat<5, 2, 16, SpecialNumbers::kOneUnsignedNan>(bits);
}
/// Returns 2^(bits - 127); 255 is NaN.
inline float Float8E8M0FNUToFloat(uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<float>::quiet_NaN()
                      : std::ldexp(1.0f, static_cast<int>(bits) - 127);
}
/// Converts the low four bits, as defined by the OCP Microscaling Formats specification.
constexpr float Float4E2M1FNToFloat(uint8_t bits) {
  return SmallFloat<2, 1, 1, SpecialNumbers::kNone>(bits);
}

template <typename T>
T LoadElement(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// The element types below read one element from memory. `Value` is the C++ type of its value.
template <typename Number>
struct NumberElement {
  using Value = Number;
  static constexpr size_t kBytes = sizeof(Number);
  static Value Load(const std::byte* bytes) { return LoadElement<Number>(bytes); }
};
template <typename Storage, float (*kConvert)(Storage)>
struct ConvertedElement {
  using Value = float;
  static constexpr size_t kBytes = sizeof(Storage);
  static Value Load(const std::byte* bytes) { return kConvert(LoadElement<Storage>(bytes)); }
};
struct BoolElement {
  using Value = bool;
  static constexpr size_t kBytes = 1;
  static Value Load(const std::byte* bytes) { return bytes[0] != std::byte{0}; }
};
template <float (*kConvert)(uint16_t)>
struct ComplexPairElement {
  using Value = std::complex<float>;
  static constexpr size_t kBytes = 4;
  static Value Load(const std::byte* bytes) {
    return {kConvert(LoadElement<uint16_t>(bytes)), kConvert(LoadElement<uint16_t>(bytes + 2))};
  }
};
/// Two 4-bit floats in one byte: has no Load, because it is two values.
struct Float4PairElement {};

template <typename Element, typename Visit>
bool VisitElement(const Visit& visit) {
  visit(Element{});
  return true;
}

/// Calls `visit` with the element type of `dtype`; returns false if the dtype is unknown.
template <typename Visit>
bool VisitDType(schema::DType dtype, const Visit& visit) {
  using schema::DType;
  switch (dtype) {
    case DType::kBool:
      return VisitElement<BoolElement>(visit);
    case DType::kUInt8:
    case DType::kUInt1:
    case DType::kUInt2:
    case DType::kUInt3:
    case DType::kUInt4:
    case DType::kUInt5:
    case DType::kUInt6:
    case DType::kUInt7:
    case DType::kBits8:
    case DType::kBits1x8:
    case DType::kBits2x4:
    case DType::kBits4x2:
      return VisitElement<NumberElement<uint8_t>>(visit);
    case DType::kInt8:
    case DType::kInt1:
    case DType::kInt2:
    case DType::kInt3:
    case DType::kInt4:
    case DType::kInt5:
    case DType::kInt6:
    case DType::kInt7:
      return VisitElement<NumberElement<int8_t>>(visit);
    case DType::kInt16:
      return VisitElement<NumberElement<int16_t>>(visit);
    case DType::kInt32:
      return VisitElement<NumberElement<int32_t>>(visit);
    case DType::kInt64:
      return VisitElement<NumberElement<int64_t>>(visit);
    case DType::kUInt16:
    case DType::kBits16:
      return VisitElement<NumberElement<uint16_t>>(visit);
    case DType::kUInt32:
      return VisitElement<NumberElement<uint32_t>>(visit);
    case DType::kUInt64:
      return VisitElement<NumberElement<uint64_t>>(visit);
    case DType::kFloat16:
      return VisitElement<ConvertedElement<uint16_t, HalfToFloat>>(visit);
    case DType::kBFloat16:
      return VisitElement<ConvertedElement<uint16_t, BFloat16ToFloat>>(visit);
    case DType::kFloat32:
      return VisitElement<NumberElement<float>>(visit);
    case DType::kFloat64:
      return VisitElement<NumberElement<double>>(visit);
    case DType::kComplex32:
      return VisitElement<ComplexPairElement<HalfToFloat>>(visit);
    case DType::kBComplex32:
      return VisitElement<ComplexPairElement<BFloat16ToFloat>>(visit);
    case DType::kComplex64:
      return VisitElement<NumberElement<std::complex<float>>>(visit);
    case DType::kComplex128:
      return VisitElement<NumberElement<std::complex<double>>>(visit);
    case DType::kFloat8E4M3FN:
      return VisitElement<ConvertedElement<uint8_t, Float8E4M3FNToFloat>>(visit);
    case DType::kFloat8E4M3FNUZ:
      return VisitElement<ConvertedElement<uint8_t, Float8E4M3FNUZToFloat>>(visit);
    case DType::kFloat8E5M2:
      return VisitElement<ConvertedElement<uint8_t, Float8E5M2ToFloat>>(visit);
    case DType::kFloat8E5M2FNUZ:
      return VisitElement<ConvertedElement<uint8_t, Float8E5M2FNUZToFloat>>(visit);
    case DType::kFloat8E8M0FNU:
      return VisitElement<ConvertedElement<uint8_t, Float8E8M0FNUToFloat>>(visit);
    case DType::kFloat4E2M1FNx2:
      return VisitElement<Float4PairElement>(visit);
    case DType::kUnknown:
      break;
  }
  return false;
}

}  // namespace cairn::core::internal
