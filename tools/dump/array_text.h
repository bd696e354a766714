#pragma once
/// Arrays as numpy prints them: brackets, aligned columns, only the edges of large ones.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "tools/common/json.h"

namespace cairn::tools::internal {

/// Which elements of an array are shown, and where they lie in a small row-major array of cells.
class ArrayLayout {
 public:
  /// With `whole` every element is a cell; else the first and last 3 of each long dimension are,
  /// and of the outer dimensions fewer when there would be too many.
  ArrayLayout(std::span<const uint64_t> sizes, bool whole);

  /// A box of the array that is a box of the cells as well.
  struct Piece {
    std::vector<uint64_t> source_offsets;
    core::Shape sizes;
    uint64_t cell_offset = 0;
  };
  /// Together all cells, each once; empty for an array without elements.
  std::vector<Piece> pieces() const;

  uint64_t cell_count() const;
  /// Of the array of cells, in elements, for every dimension.
  std::vector<uint64_t> strides() const;
  /// Cells along dimension d.
  uint64_t shown(size_t d) const { return dimensions_[d].head + dimensions_[d].tail; }
  /// Cells before the gap in dimension d; shown(d) if there is none.
  uint64_t head(size_t d) const { return dimensions_[d].head; }
  size_t rank() const { return dimensions_.size(); }
  bool has_gap(size_t d) const { return shown(d) < dimensions_[d].size; }

 private:
  struct Dimension {
    uint64_t size = 0;
    uint64_t head = 0;
    uint64_t tail = 0;
  };
  std::vector<Dimension> dimensions_;
};

/// The cells as text, in lines of at most `width_columns` where possible. `dropped` dimensions,
/// which have one cell, get no brackets.
std::string ArrayText(core::DType dtype, const ArrayLayout& layout,
                      const std::vector<bool>& dropped, std::span<const std::byte> cells,
                      uint32_t width_columns);

/// All elements as nested lists; [] if there are none. Requires a row-major `values` of `shape`.
Json ArrayJson(core::DType dtype, std::span<const uint64_t> shape,
               std::span<const std::byte> values);

}  // namespace cairn::tools::internal
