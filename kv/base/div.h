#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Division and rounding of unsigned integers, named by intent.

#include <cstdint>

namespace cairn {

/// Returns `value / divisor`, rounded up. Requires `divisor > 0`.
constexpr uint64_t DivCeil(uint64_t value, uint64_t divisor) {
  return value / divisor + (value % divisor != 0);
}

/// Returns the largest multiple of `multiple` that is at most `value`. Requires `multiple > 0`.
constexpr uint64_t RoundDown(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}

/// Returns the smallest multiple of `multiple` that is at least `value`. Requires `multiple > 0`
/// and a result that fits into 64 bits.
constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return DivCeil(value, multiple) * multiple;
}

}  // namespace cairn
