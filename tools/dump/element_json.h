#pragma once
/// Single tensor elements as JSON.

#include <cstddef>
#include <span>

#include "schema/dtype.h"
#include "tools/common/json.h"

namespace cairn::tools {

/// A finite double is a number; NaN and infinities, which JSON does not have, are the strings
/// "NaN", "Infinity" and "-Infinity".
Json FloatJson(double value);

/// The exact value. A complex number is [real, imaginary]; a float4_e2m1fn_x2 is a list of its two
/// halves. Requires ElementBytes(dtype) bytes.
Json ElementJson(schema::DType dtype, std::span<const std::byte> element);

}  // namespace cairn::tools
