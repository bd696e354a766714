#pragma once
/// Slices on the command line, as Python writes them: "0:4, :, -1, ...".

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::tools {

struct Slice {
  core::Box box;              // every dimension of the tensor
  std::vector<bool> dropped;  // dimensions selected by one index, which the result does not have
  core::Shape shape;          // shape of the result
};

/// Ranges are clipped to the shape, and dimensions that are missing at the end are complete, as in
/// Python. kInvalidArgument: the text is not a slice, has too many dimensions, an index out of
/// range or a step other than 1.
Result<Slice> ParseSlice(std::string_view text, std::span<const uint64_t> shape);

}  // namespace cairn::tools
