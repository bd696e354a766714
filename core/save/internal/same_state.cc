#include "core/save/internal/same_state.h"

#include <algorithm>
#include <bit>
#include <complex>
#include <cstdint>
#include <variant>

namespace cairn::core::internal {
namespace {

bool HasSameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Not operator==, for which 0.0 and -0.0 are equal.
bool IsSameValue(const Value& a, const Value& b) {
  if (const auto* number = std::get_if<double>(&a); number && std::holds_alternative<double>(b)) {
    return HasSameBits(*number, std::get<double>(b));
  }
  using Complex = std::complex<double>;
  if (const auto* number = std::get_if<Complex>(&a); number && std::holds_alternative<Complex>(b)) {
    const Complex& other = std::get<Complex>(b);
    return HasSameBits(number->real(), other.real()) && HasSameBits(number->imag(), other.imag());
  }
  return a == b;
}

bool IsSameView(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.device == b.device && a.shape == b.shape &&
         a.strides == b.strides;
}

}  // namespace

bool HasSameTensors(const StateDict& a, const StateDict& b) {
  return a.shardings.empty() && b.shardings.empty() && a.slot == b.slot &&
         std::ranges::equal(a.tensors, b.tensors, IsSameView) && a.tree == b.tree;
}

bool HasSameValues(const StateDict& a, const StateDict& b) {
  return std::ranges::equal(a.values, b.values, IsSameValue);
}

}  // namespace cairn::core::internal
