#pragma once
/// Single tensor elements as JSON, and how far two of them lie apart.

#include <cstddef>
#include <optional>
#include <span>

#include "schema/dtype.h"
#include "tools/common/json.h"

namespace cairn::tools::internal {

/// Finite doubles as numbers; "NaN", "Infinity", "-Infinity" as strings, for which JSON has no
/// number.
Json FloatJson(double value);

/// Exact; complex numbers as [real, imaginary], the two halves of a float4_e2m1fn_x2 as a list.
/// Requires ElementBytes(dtype) bytes.
Json ElementJson(schema::DType dtype, std::span<const std::byte> element);

/// |a - b|: exact to a double's digits for 64-bit integers too; NaN or infinite where one of them
/// is. Nothing for float4_e2m1fn_x2 and unknown dtypes, which are no single numbers.
std::optional<double> Distance(schema::DType dtype, std::span<const std::byte> a,
                               std::span<const std::byte> b);

}  // namespace cairn::tools::internal
