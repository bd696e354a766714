#pragma once
/// Elements of every dtype as C++ numbers. Threads: all functions are pure.

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "schema/dtype.h"

namespace cairn::core::internal {

/// IEEE binary16 and bfloat16.
float HalfToFloat(uint16_t bits);
float BFloat16ToFloat(uint16_t bits);

/// The 8-bit kinds, after the OCP 8-bit Floating Point Specification, and the "fnuz" ones after
/// https://arxiv.org/abs/2206.02915 (no infinities, no negative zero, NaN is 0x80).
float Float8E4M3FNToFloat(uint8_t bits);
float Float8E4M3FNUZToFloat(uint8_t bits);
float Float8E5M2ToFloat(uint8_t bits);
float Float8E5M2FNUZToFloat(uint8_t bits);
/// A power of two, 2^(bits - 127); 255 is NaN.
float Float8E8M0FNUToFloat(uint8_t bits);
/// The low four bits, after the OCP Microscaling Formats specification.
float Float4E2M1FNToFloat(uint8_t bits);

template <typename T>
T LoadElement(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Reads one element each: `Storage` is what lies in memory, `Value` what it means.
template <typename Number>
struct Plain {
  using Value = Number;
  static constexpr size_t kBytes = sizeof(Number);
  static Value Load(const std::byte* bytes) { return LoadElement<Number>(bytes); }
};
template <typename Storage, float (*kConvert)(Storage)>
struct Converted {
  using Value = float;
  static constexpr size_t kBytes = sizeof(Storage);
  static Value Load(const std::byte* bytes) { return kConvert(LoadElement<Storage>(bytes)); }
};
struct BoolElement {
  using Value = bool;
  static constexpr size_t kBytes = 1;
  static Value Load(const std::byte* bytes) { return bytes[0] != std::byte{0}; }
};
struct ComplexHalf {
  using Value = std::complex<float>;
  static constexpr size_t kBytes = 4;
  static Value Load(const std::byte* bytes) {
    return {HalfToFloat(LoadElement<uint16_t>(bytes)),
            HalfToFloat(LoadElement<uint16_t>(bytes + 2))};
  }
};
struct Float4Pair {};

/// Calls `visit` with the reader of `dtype` (Plain, Converted, ..., or Float4Pair); false for
/// unknown ones.
template <typename Visit>
bool VisitDType(schema::DType dtype, const Visit& visit) {
  using schema::DType;
  switch (dtype) {
    case DType::kBool:
      visit(BoolElement{});
      return true;
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
      visit(Plain<uint8_t>{});
      return true;
    case DType::kInt8:
    case DType::kInt1:
    case DType::kInt2:
    case DType::kInt3:
    case DType::kInt4:
    case DType::kInt5:
    case DType::kInt6:
    case DType::kInt7:
      visit(Plain<int8_t>{});
      return true;
    case DType::kInt16:
      visit(Plain<int16_t>{});
      return true;
    case DType::kInt32:
      visit(Plain<int32_t>{});
      return true;
    case DType::kInt64:
      visit(Plain<int64_t>{});
      return true;
    case DType::kUInt16:
    case DType::kBits16:
      visit(Plain<uint16_t>{});
      return true;
    case DType::kUInt32:
      visit(Plain<uint32_t>{});
      return true;
    case DType::kUInt64:
      visit(Plain<uint64_t>{});
      return true;
    case DType::kFloat16:
      visit(Converted<uint16_t, HalfToFloat>{});
      return true;
    case DType::kBFloat16:
      visit(Converted<uint16_t, BFloat16ToFloat>{});
      return true;
    case DType::kFloat32:
      visit(Plain<float>{});
      return true;
    case DType::kFloat64:
      visit(Plain<double>{});
      return true;
    case DType::kComplex32:
      visit(ComplexHalf{});
      return true;
    case DType::kComplex64:
      visit(Plain<std::complex<float>>{});
      return true;
    case DType::kComplex128:
      visit(Plain<std::complex<double>>{});
      return true;
    case DType::kFloat8E4M3FN:
      visit(Converted<uint8_t, Float8E4M3FNToFloat>{});
      return true;
    case DType::kFloat8E4M3FNUZ:
      visit(Converted<uint8_t, Float8E4M3FNUZToFloat>{});
      return true;
    case DType::kFloat8E5M2:
      visit(Converted<uint8_t, Float8E5M2ToFloat>{});
      return true;
    case DType::kFloat8E5M2FNUZ:
      visit(Converted<uint8_t, Float8E5M2FNUZToFloat>{});
      return true;
    case DType::kFloat8E8M0FNU:
      visit(Converted<uint8_t, Float8E8M0FNUToFloat>{});
      return true;
    case DType::kFloat4E2M1FNx2:
      visit(Float4Pair{});
      return true;
    case DType::kUnknown:
      break;
  }
  return false;
}

}  // namespace cairn::core::internal
