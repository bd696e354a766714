#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Element types, with the numbers that are stored on disk.
///
/// The numeric values are frozen: every TensorRecord contains one. New types are added at the end.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn::schema {

enum class DType : uint8_t {
  kUnknown = 0,
  kBool = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kInt16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kUInt16 = 7,
  kUInt32 = 8,
  kUInt64 = 9,
  kFloat16 = 10,
  kBFloat16 = 11,
  kFloat32 = 12,
  kFloat64 = 13,
  kComplex32 = 14,
  kComplex64 = 15,
  kComplex128 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kFloat8E8M0FNU = 21,
  kFloat4E2M1FNx2 = 22,  // two 4-bit floats per element, as torch counts them
  kUInt1 = 23,           // torch's sub-byte integers occupy one byte per element
  kUInt2 = 24,
  kUInt3 = 25,
  kUInt4 = 26,
  kUInt5 = 27,
  kUInt6 = 28,
  kUInt7 = 29,
  kInt1 = 30,
  kInt2 = 31,
  kInt3 = 32,
  kInt4 = 33,
  kInt5 = 34,
  kInt6 = 35,
  kInt7 = 36,
  kBits8 = 37,
  kBits16 = 38,
  kBits1x8 = 39,
  kBits2x4 = 40,
  kBits4x2 = 41,
  kBComplex32 = 42,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // torch's name without "torch."
  uint8_t storage_bits;   // bits that one element occupies in memory and on disk
};

inline constexpr std::array kDTypes = {
    DTypeInfo{DType::kBool, "bool", 8},
    DTypeInfo{DType::kUInt8, "uint8", 8},
    DTypeInfo{DType::kInt8, "int8", 8},
    DTypeInfo{DType::kInt16, "int16", 16},
    DTypeInfo{DType::kInt32, "int32", 32},
    DTypeInfo{DType::kInt64, "int64", 64},
    DTypeInfo{DType::kUInt16, "uint16", 16},
    DTypeInfo{DType::kUInt32, "uint32", 32},
    DTypeInfo{DType::kUInt64, "uint64", 64},
    DTypeInfo{DType::kFloat16, "float16", 16},
    DTypeInfo{DType::kBFloat16, "bfloat16", 16},
    DTypeInfo{DType::kFloat32, "float32", 32},
    DTypeInfo{DType::kFloat64, "float64", 64},
    DTypeInfo{DType::kComplex32, "complex32", 32},
    DTypeInfo{DType::kComplex64, "complex64", 64},
    DTypeInfo{DType::kComplex128, "complex128", 128},
    DTypeInfo{DType::kFloat8E4M3FN, "float8_e4m3fn", 8},
    DTypeInfo{DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 8},
    DTypeInfo{DType::kFloat8E5M2, "float8_e5m2", 8},
    DTypeInfo{DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 8},
    DTypeInfo{DType::kFloat8E8M0FNU, "float8_e8m0fnu", 8},
    DTypeInfo{DType::kFloat4E2M1FNx2, "float4_e2m1fn_x2", 8},
    DTypeInfo{DType::kUInt1, "uint1", 8},
    DTypeInfo{DType::kUInt2, "uint2", 8},
    DTypeInfo{DType::kUInt3, "uint3", 8},
    DTypeInfo{DType::kUInt4, "uint4", 8},
    DTypeInfo{DType::kUInt5, "uint5", 8},
    DTypeInfo{DType::kUInt6, "uint6", 8},
    DTypeInfo{DType::kUInt7, "uint7", 8},
    DTypeInfo{DType::kInt1, "int1", 8},
    DTypeInfo{DType::kInt2, "int2", 8},
    DTypeInfo{DType::kInt3, "int3", 8},
    DTypeInfo{DType::kInt4, "int4", 8},
    DTypeInfo{DType::kInt5, "int5", 8},
    DTypeInfo{DType::kInt6, "int6", 8},
    DTypeInfo{DType::kInt7, "int7", 8},
    DTypeInfo{DType::kBits8, "bits8", 8},
    DTypeInfo{DType::kBits16, "bits16", 16},
    DTypeInfo{DType::kBits1x8, "bits1x8", 8},
    DTypeInfo{DType::kBits2x4, "bits2x4", 8},
    DTypeInfo{DType::kBits4x2, "bits4x2", 8},
    DTypeInfo{DType::kBComplex32, "bcomplex32", 32},
};

/// Returns the table row of `dtype`, or nothing for kUnknown and for values unknown to this build.
constexpr std::optional<DTypeInfo> FindDType(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info;
  }
  return std::nullopt;
}

constexpr std::optional<DTypeInfo> FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info;
  }
  return std::nullopt;
}

/// Returns the name for messages and tables; "unknown" for values unknown to this build.
constexpr std::string_view DTypeName(DType dtype) {
  const auto info = FindDType(dtype);
  return info ? info->name : std::string_view("unknown");
}

/// Returns the bytes of one element; 0 for unknown types. Every known type has complete bytes.
constexpr uint64_t ElementBytes(DType dtype) {
  const auto info = FindDType(dtype);
  return info ? info->storage_bits / 8 : 0;
}

}  // namespace cairn::schema
