#pragma once
/// Converts elements of every dtype to C++ numbers. Threads: all functions are safe.

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "schema/dtype.h"

namespace cairn::core::internal {

/// Convert IEEE binary16 and bfloat16.
float HalfToFloat(uint16_t bits);
float BFloat16ToFloat(uint16_t bits);

/// Convert 8-bit floats as defined by the OCP 8-bit Floating Point Specification, and the "fnuz"
/// kinds as defined by https://arxiv.org/abs/2206.02915 (no infinities, no negative zero, 0x80 is
/// NaN).
float Float8E4M3FNToFloat(uint8_t bits);
float Float8E4M3FNUZToFloat(uint8_t bits);
float Float8E5M2ToFloat(uint8_t bits);
float Float8E5M2FNUZToFloat(uint8_t bits);
/// Returns 2^(bits - 127); 255 is NaN.
float Float8E8M0FNUToFloat(uint8_t bits);
/// Converts the low four bits, as defined by the OCP Microscaling Formats specification.
float Float4E2M1FNToFloat(uint8_t bits);

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
struct ComplexHalfElement {
  using Value = std::complex<float>;
  static constexpr size_t kBytes = 4;
  static Value Load(const std::byte* bytes) {
    return {HalfToFloat(LoadElement<uint16_t>(bytes)),
            HalfToFloat(LoadElement<uint16_t>(bytes + 2))};
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
      return VisitElement<ComplexHalfElement>(visit);
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
