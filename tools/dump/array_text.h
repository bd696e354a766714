#pragma once
/// Arrays as Python writes them: slices on the command line, such as "0:4, :, -1, ...", and
/// elements printed as numpy does, with brackets, aligned columns, and only the edges of large
/// arrays.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"
#include "kv/base/error.h"
#include "tools/common/json.h"

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

/// Selects the elements of an array that are shown, and maps them to a small row-major array of
/// cells.
class ArrayLayout {
 public:
  /// If `whole`, every element is a cell. Otherwise the cells are the first and last 3 elements of
  /// each long dimension, and fewer of the outer dimensions if that would still be too many.
  ArrayLayout(std::span<const uint64_t> sizes, bool whole);

  /// A box of the array that is also a box of the cells.
  struct EdgeBox {
    std::vector<uint64_t> source_offsets;
    core::Shape sizes;
    uint64_t cell_offset = 0;
  };
  /// Boxes that cover each cell once; none for an array without elements.
  std::vector<EdgeBox> edge_boxes() const;

  uint64_t cell_count() const;
  /// Strides of the array of cells, in elements, one per dimension.
  std::vector<uint64_t> strides() const;
  /// Number of cells along dimension d.
  uint64_t shown(size_t d) const { return dimensions_[d].head + dimensions_[d].tail; }
  /// Number of cells before the gap in dimension d; shown(d) if there is no gap.
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

/// Returns the cells as text, in lines of at most `width_columns` if possible. `dropped`
/// dimensions, which have one cell, get no brackets.
std::string ArrayText(core::DType dtype, const ArrayLayout& layout,
                      const std::vector<bool>& dropped, std::span<const std::byte> cells,
                      uint32_t width_columns);

/// Returns all elements as nested lists; [] if there are none. Requires that `values` is row-major
/// and has shape `shape`.
Json ArrayJson(core::DType dtype, std::span<const uint64_t> shape,
               std::span<const std::byte> values);

}  // namespace cairn::tools
