#pragma once
/// The numbers that elements count as, in statistics and histograms: a complex number counts as its
/// magnitude, and a byte of two 4-bit floats as both. Threads: all functions are safe.

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "core/tensor/internal/element.h"

namespace cairn::core::internal {

template <typename T>
inline constexpr bool kIsComplex = false;
template <typename T>
inline constexpr bool kIsComplex<std::complex<T>> = true;

/// Returns the magnitude. std::abs would return infinity for (inf, nan), which hides the NaN.
template <typename T>
T Magnitude(std::complex<T> value) {
  if (std::isnan(value.real()) || std::isnan(value.imag())) {
    return std::numeric_limits<T>::quiet_NaN();
  }
  return std::hypot(value.real(), value.imag());
}

/// Converts elements to numbers. `Number` is an integer, bool, float or double.
template <typename Element>
struct ElementNumbers {
  static auto NumberOf(typename Element::Value value) {
    if constexpr (kIsComplex<typename Element::Value>) {
      return Magnitude(value);
    } else {
      return value;
    }
  }
  using Number = decltype(NumberOf(typename Element::Value{}));
  static constexpr size_t kBytes = Element::kBytes;
  static constexpr size_t kPerElement = 1;
  static void Load(const std::byte* bytes, Number* numbers) {
    *numbers = NumberOf(Element::Load(bytes));
  }
};
template <>
struct ElementNumbers<Float4PairElement> {
  using Number = float;
  static constexpr size_t kBytes = 1;
  static constexpr size_t kPerElement = 2;
  static void Load(const std::byte* bytes, Number* numbers) {
    const auto pair = static_cast<uint8_t>(*bytes);
    numbers[0] = Float4E2M1FNToFloat(pair & 0xf);
    numbers[1] = Float4E2M1FNToFloat(pair >> 4);
  }
};

/// The most numbers that ForEachBlock passes at once.
inline constexpr size_t kNumbersPerBlock = 4096;

/// Calls `visit` with a std::span of at most kNumbersPerBlock numbers after another. Requires that
/// `bytes` are complete elements.
template <typename Element, typename Visit>
void ForEachBlock(std::span<const std::byte> bytes, const Visit& visit) {
  using Numbers = ElementNumbers<Element>;
  // An array, because std::vector<bool> is not a span of bool.
  typename Numbers::Number block[kNumbersPerBlock];
  while (!bytes.empty()) {
    const size_t count =
        std::min(kNumbersPerBlock / Numbers::kPerElement, bytes.size() / Numbers::kBytes);
    if (count == 0) return;
    for (size_t i = 0; i < count; ++i) {
      Numbers::Load(bytes.data() + i * Numbers::kBytes, block + i * Numbers::kPerElement);
    }
    visit(std::span<const typename Numbers::Number>(block, count * Numbers::kPerElement));
    bytes = bytes.subspan(count * Numbers::kBytes);
  }
}

}  // namespace cairn::core::internal
