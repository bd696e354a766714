#include "core/tensor/internal/element.h"

#include <bit>
#include <cmath>
#include <limits>

namespace cairn::core::internal {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Returns the finite value of the three fields; exponent 0 is subnormal.
float Finite(bool negative, int exponent, int mantissa, int mantissa_bits, int bias) {
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
    return negative ? -magnitude : magnitude;
  }
  // Every normal number of these kinds is a normal number of binary32 as well.
  return std::bit_cast<float>(uint32_t{negative} << 31 |
                              static_cast<uint32_t>(exponent - bias + 127) << 23 |
                              static_cast<uint32_t>(mantissa) << (23 - mantissa_bits));
}

}  // namespace

float HalfToFloat(uint16_t bits) {
  const bool negative = (bits & 0x8000) != 0;
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return mantissa != 0 ? kNan : negative ? -kInf : kInf;
  return Finite(negative, exponent, mantissa, 10, 15);
}

float BFloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float Float8E4M3FNToFloat(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return kNan;
  return Finite((bits & 0x80) != 0, bits >> 3 & 0xf, bits & 0x7, 3, 7);
}

float Float8E4M3FNUZToFloat(uint8_t bits) {
  if (bits == 0x80) return kNan;
  return Finite((bits & 0x80) != 0, bits >> 3 & 0xf, bits & 0x7, 3, 8);
}

float Float8E5M2ToFloat(uint8_t bits) {
  const bool negative = (bits & 0x80) != 0;
  const int exponent = bits >> 2 & 0x1f;
  const int mantissa = bits & 0x3;
  if (exponent == 0x1f) return mantissa != 0 ? kNan : negative ? -kInf : kInf;
  return Finite(negative, exponent, mantissa, 2, 15);
}

float Float8E5M2FNUZToFloat(uint8_t bits) {
  if (bits == 0x80) return kNan;
  return Finite((bits & 0x80) != 0, bits >> 2 & 0x1f, bits & 0x3, 2, 16);
}

float Float8E8M0FNUToFloat(uint8_t bits) {
  return bits == 0xff ? kNan : std::ldexp(1.0f, static_cast<int>(bits) - 127);
}

float Float4E2M1FNToFloat(uint8_t bits) {
  return Finite((bits & 0x8) != 0, bits >> 1 & 0x3, bits & 0x1, 1, 1);
}

}  // namespace cairn::core::internal
