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

/// Calls ROW(enumerator, number, name, bits) for each type: the number that is stored, torch's name
/// without "torch.", and the bits that one element occupies in memory and on disk. torch's sub-byte
/// integers occupy one byte, and float4_e2m1fn_x2 has two 4-bit floats per element.
#define CAIRN_DTYPES(ROW)                         \
  ROW(kBool, 1, "bool", 8)                        \
  ROW(kUInt8, 2, "uint8", 8)                      \
  ROW(kInt8, 3, "int8", 8)                        \
  ROW(kInt16, 4, "int16", 16)                     \
  ROW(kInt32, 5, "int32", 32)                     \
  ROW(kInt64, 6, "int64", 64)                     \
  ROW(kUInt16, 7, "uint16", 16)                   \
  ROW(kUInt32, 8, "uint32", 32)                   \
  ROW(kUInt64, 9, "uint64", 64)                   \
  ROW(kFloat16, 10, "float16", 16)                \
  ROW(kBFloat16, 11, "bfloat16", 16)              \
  ROW(kFloat32, 12, "float32", 32)                \
  ROW(kFloat64, 13, "float64", 64)                \
  ROW(kComplex32, 14, "complex32", 32)            \
  ROW(kComplex64, 15, "complex64", 64)            \
  ROW(kComplex128, 16, "complex128", 128)         \
  ROW(kFloat8E4M3FN, 17, "float8_e4m3fn", 8)      \
  ROW(kFloat8E4M3FNUZ, 18, "float8_e4m3fnuz", 8)  \
  ROW(kFloat8E5M2, 19, "float8_e5m2", 8)          \
  ROW(kFloat8E5M2FNUZ, 20, "float8_e5m2fnuz", 8)  \
  ROW(kFloat8E8M0FNU, 21, "float8_e8m0fnu", 8)    \
  ROW(kFloat4E2M1FNx2, 22, "float4_e2m1fn_x2", 8) \
  ROW(kUInt1, 23, "uint1", 8)                     \
  ROW(kUInt2, 24, "uint2", 8)                     \
  ROW(kUInt3, 25, "uint3", 8)                     \
  ROW(kUInt4, 26, "uint4", 8)                     \
  ROW(kUInt5, 27, "uint5", 8)                     \
  ROW(kUInt6, 28, "uint6", 8)                     \
  ROW(kUInt7, 29, "uint7", 8)                     \
  ROW(kInt1, 30, "int1", 8)                       \
  ROW(kInt2, 31, "int2", 8)                       \
  ROW(kInt3, 32, "int3", 8)                       \
  ROW(kInt4, 33, "int4", 8)                       \
  ROW(kInt5, 34, "int5", 8)                       \
  ROW(kInt6, 35, "int6", 8)                       \
  ROW(kInt7, 36, "int7", 8)                       \
  ROW(kBits8, 37, "bits8", 8)                     \
  ROW(kBits16, 38, "bits16", 16)                  \
  ROW(kBits1x8, 39, "bits1x8", 8)                 \
  ROW(kBits2x4, 40, "bits2x4", 8)                 \
  ROW(kBits4x2, 41, "bits4x2", 8)                 \
  ROW(kBComplex32, 42, "bcomplex32", 32)

enum class DType : uint8_t {
  kUnknown = 0,
#define CAIRN_ENUMERATOR(enumerator, number, name, bits) enumerator = number,
  CAIRN_DTYPES(CAIRN_ENUMERATOR)
#undef CAIRN_ENUMERATOR
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  uint8_t storage_bits;
};

inline constexpr auto kDTypes = std::to_array<DTypeInfo>({
#define CAIRN_INFO(enumerator, number, name, bits) {DType::enumerator, name, bits},
    CAIRN_DTYPES(CAIRN_INFO)
#undef CAIRN_INFO
});

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
