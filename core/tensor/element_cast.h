#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Conversion of floating-point elements from one dtype to another.

#include <cstddef>
#include <cstdint>

#include "schema/dtype.h"

namespace cairn::core {

/// Converts `count` elements, which need not be aligned and do not overlap.
using ElementCast = void (*)(const std::byte* source, std::byte* target, uint64_t count);

/// Returns the conversion from one dtype to another; null if there is none. There are conversions
/// from float64, float32, float16, bfloat16, float8_e4m3fn and float8_e5m2 to float64, float32,
/// float16 and bfloat16.
///
/// Results are the same as from torch's `Tensor.to` on a CPU: rounded to nearest, ties to even,
/// with subnormal numbers and infinities; from float64 to 16 bits through float32. A NaN remains a
/// NaN of the same sign, quiet, with the upper bits of its payload. (The NaN that torch returns
/// depends on the processor and on the number of elements.) The environment of the calling thread
/// has no influence, except that subnormal float32 results of float64 become 0 if it flushes them.
ElementCast FindElementCast(schema::DType from, schema::DType to);

}  // namespace cairn::core
