// Single tensor elements as JSON, and how far two of them lie apart.

#include "tools/dump/element.h"

#include <cmath>
#include <complex>
#include <cstring>

#include "core/statistics.h"

namespace cairn::tools::internal {
namespace {

using schema::DType;

bool IsComplex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

bool IsFloat(DType dtype) {
  return (dtype >= DType::kFloat16 && dtype <= DType::kFloat64) ||
         (dtype >= DType::kFloat8E4M3FN && dtype <= DType::kFloat8E8M0FNU);
}

/// Subtracts before anything is rounded: neighbours above 2^53 are one double.
template <typename Integer>
double IntegerDistance(const std::byte* a, const std::byte* b) {
  Integer x, y;
  std::memcpy(&x, a, sizeof(x));
  std::memcpy(&y, b, sizeof(y));
  const uint64_t difference = x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                                    : static_cast<uint64_t>(y) - static_cast<uint64_t>(x);
  return static_cast<double>(difference);
}

}  // namespace

Json FloatJson(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

Json ElementJson(DType dtype, std::span<const std::byte> element) {
  if (dtype == DType::kBool) return element[0] != std::byte{0};
  if (IsFloat(dtype) || IsComplex(dtype)) {
    const std::complex<double> value = core::ElementValue(dtype, element).value_or(0.0);
    if (IsFloat(dtype)) return FloatJson(value.real());
    return Json::array({FloatJson(value.real()), FloatJson(value.imag())});
  }
  // Integers, 64-bit ones too, are exact as text; so are pairs of 4-bit floats, "[0.5, -6]".
  return Json::parse(core::FormatElement(dtype, element), nullptr, /*allow_exceptions=*/false);
}

std::optional<double> Distance(DType dtype, std::span<const std::byte> a,
                               std::span<const std::byte> b) {
  if (dtype == DType::kInt64) return IntegerDistance<int64_t>(a.data(), b.data());
  if (dtype == DType::kUInt64) return IntegerDistance<uint64_t>(a.data(), b.data());
  const auto x = core::ElementValue(dtype, a);
  const auto y = core::ElementValue(dtype, b);
  if (!x || !y) return std::nullopt;
  return std::abs(*x - *y);
}

}  // namespace cairn::tools::internal
