#pragma once
/// Slices on the command line, as Python writes them: "0:4, :, -1, ...".

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::tools::internal {

struct Slice {
  core::Box box;              // every dimension of the tensor
  std::vector<bool> dropped;  // dimensions taken by one index, which the result does not have
  core::Shape shape;          // of the result
};

/// Ranges are cut to the shape as Python does; missing dimensions at the end are taken whole.
/// kInvalidArgument: bad text, too many dimensions, an index outside, a step other than 1.
Result<Slice> ParseSlice(std::string_view text, std::span<const uint64_t> shape);

}  // namespace cairn::tools::internal
