// Single tensor elements as JSON.

#include "tools/dump/element_json.h"

#include <cmath>
#include <complex>

#include "core/tensor/element_statistics.h"

namespace cairn::tools {
namespace {

using schema::DType;

bool IsComplex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

bool IsFloat(DType dtype) {
  return (dtype >= DType::kFloat16 && dtype <= DType::kFloat64) ||
         (dtype >= DType::kFloat8E4M3FN && dtype <= DType::kFloat8E8M0FNU);
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
    Json pair = Json::List();
    pair.Append(FloatJson(value.real()));
    pair.Append(FloatJson(value.imag()));
    return pair;
  }
  // The text of an integer is exact for 64 bits too; so is that of two 4-bit floats, "[0.5, -6]".
  return Json::Parse(core::FormatElement(dtype, element));
}

}  // namespace cairn::tools
