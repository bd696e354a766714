#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Keys before and after a conversion, and the elements that they have in common.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor/index_map.h"
#include "core/tensor/tensor.h"

namespace cairn::core {

/// A key before the rules: a tensor, or a plain value.
struct SourceKey {
  std::string fqn;
  bool is_tensor = false;
  DType dtype = DType::kUnknown;
  Shape shape;
};

/// Elements of one stored tensor that are a part of a converted tensor.
struct SourcePiece {
  /// Factors of blocks of the stored matrix: `source` is a float32 matrix with one element per
  /// block of `block` x `block` elements.
  struct BlockScale {
    size_t source = 0;
    uint64_t block = 0;
  };
  size_t source = 0;  // in the list of source keys
  IndexMap map;       // from the stored tensor to the converted one
  std::optional<BlockScale> scale;
};

/// A key after the rules.
struct ConvertedKey {
  std::string fqn;
  bool is_tensor = false;
  size_t source = 0;  // the key that determines its place in the state: the first of its sources
  DType dtype = DType::kUnknown;  // elements of another dtype are cast
  Shape shape;
  std::vector<SourcePiece> pieces;  // each element exactly once; none if there are no elements
  /// True if the tensor is its source with another name or dtype at most.
  bool is_whole = true;
};

}  // namespace cairn::core
