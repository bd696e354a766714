// Arrays as Python writes them: slices on the command line, and elements printed as numpy does.

#include "tools/dump/array_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/tensor/element_statistics.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"

namespace cairn::tools {
namespace {

// --- Slices

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(Trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::unexpected<Error> Refuse(std::string_view part, std::string_view why) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("slice '{}': {}", EscapeText(part), why));
}

/// Returns nothing for an empty text, which means "from the start" or "to the end".
Result<std::optional<int64_t>> ParseBound(std::string_view part, std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto value = ParseWhole<int64_t>(text);
  if (!value) return Refuse(part, "not a number; write a slice like 0:4,:,-1");
  return value;
}

/// Python's rule: a negative bound counts from the end; the result is clipped to [0, size].
uint64_t Clamp(int64_t bound, uint64_t size) {
  if (bound < 0) {
    const uint64_t back = static_cast<uint64_t>(-(bound + 1)) + 1;
    return back > size ? 0 : size - back;
  }
  return std::min(static_cast<uint64_t>(bound), size);
}

Result<void> AddDimension(std::string_view part, uint64_t size, Slice& slice) {
  const auto bounds = Split(part, ':');
  if (bounds.size() > 3) return Refuse(part, "more than two colons; write BEGIN:END");
  CAIRN_TRY_ASSIGN(const auto first, ParseBound(part, bounds[0]));
  if (bounds.size() == 1) {
    if (!first)
      return Refuse(part, "an index is missing between two commas; write : for a whole dimension");
    const uint64_t index = Clamp(*first, size);
    const bool before_start = *first < 0 && static_cast<uint64_t>(-(*first + 1)) >= size;
    if (before_start || index >= size) {
      return Refuse(part, size == 0 ? std::string("the dimension is empty; write :")
                                    : fmt::format("out of range for a dimension of size {0}; write "
                                                  "an index from -{0} to {1}",
                                                  size, size - 1));
    }
    slice.box.offsets.push_back(index);
    slice.box.sizes.push_back(1);
    slice.dropped.push_back(true);
    return {};
  }
  CAIRN_TRY_ASSIGN(const auto last, ParseBound(part, bounds[1]));
  if (bounds.size() == 3) {
    CAIRN_TRY_ASSIGN(const auto step, ParseBound(part, bounds[2]));
    if (step.value_or(1) != 1)
      return Refuse(part, "only a step of 1 is supported; write BEGIN:END");
  }
  const uint64_t begin = first ? Clamp(*first, size) : 0;
  const uint64_t end = last ? Clamp(*last, size) : size;
  slice.box.offsets.push_back(begin);
  slice.box.sizes.push_back(end > begin ? end - begin : 0);
  slice.dropped.push_back(false);
  slice.shape.push_back(slice.box.sizes.back());
  return {};
}

// --- Elements

constexpr uint64_t kEdge = 3;
/// Limit for the cells of a layout that shows only edges; outer dimensions show less beyond it.
constexpr uint64_t kMaxEdgeCells = 2000;

class Printer {
 public:
  Printer(core::DType dtype, const ArrayLayout& layout, const std::vector<bool>& dropped,
          std::span<const std::byte> cells, uint32_t width_columns)
      : layout_(layout), strides_(layout.strides()), width_columns_(width_columns) {
    const uint64_t element_bytes = schema::ElementBytes(dtype);
    for (uint64_t i = 0; i < layout.cell_count(); ++i) {
      texts_.push_back(core::FormatElement(dtype, cells.subspan(i * element_bytes, element_bytes)));
      cell_columns_ = std::max(cell_columns_, texts_.back().size());
    }
    for (size_t d = 0; d < layout.rank(); ++d) {
      if (!dropped[d]) kept_.push_back(d);
    }
  }

  std::string Print() { return kept_.empty() ? texts_[0] : Block(0, 0); }

 private:
  /// Returns the subarray at one index of each of the first `depth` dimensions.
  std::string Block(size_t depth, uint64_t cell) const {
    if (depth + 1 == kept_.size()) return Row(depth, cell);
    const size_t d = kept_[depth];
    // One line end between rows and one more per outer dimension, as numpy does.
    const std::string gap =
        std::string(kept_.size() - depth - 1, '\n') + std::string(depth + 1, ' ');
    std::string text = "[";
    for (uint64_t i = 0; i < layout_.shown(d); ++i) {
      if (i > 0) text += gap;
      if (layout_.has_gap(d) && i == layout_.head(d)) text += "..." + gap;
      text += Block(depth + 1, cell + i * strides_[d]);
    }
    if (layout_.has_gap(d) && layout_.head(d) == layout_.shown(d)) text += gap + "...";
    return text + "]";
  }

  std::string Row(size_t depth, uint64_t cell) const {
    const size_t d = kept_[depth];
    const std::string indent(depth + 1, ' ');
    std::string text = "[";
    size_t column = depth + 1;
    const auto add = [&](const std::string& word) {
      const bool first = text.size() == 1;
      if (!first && column + 1 + word.size() > width_columns_) {
        text += "\n" + indent;
        column = indent.size();
      } else if (!first) {
        text += " ";
        ++column;
      }
      text += word;
      column += word.size();
    };
    for (uint64_t i = 0; i < layout_.shown(d); ++i) {
      if (layout_.has_gap(d) && i == layout_.head(d)) add("...");
      const std::string& value = texts_[cell + i * strides_[d]];
      add(std::string(cell_columns_ - value.size(), ' ') + value);
    }
    if (layout_.has_gap(d) && layout_.head(d) == layout_.shown(d)) add("...");
    return text + "]";
  }

  const ArrayLayout& layout_;
  std::vector<uint64_t> strides_;
  uint32_t width_columns_;
  std::vector<std::string> texts_;
  size_t cell_columns_ = 0;
  std::vector<size_t> kept_;
};

Json Nested(core::DType dtype, std::span<const uint64_t> shape, const std::byte*& next) {
  if (shape.empty()) {
    Json element = ElementJson(dtype, {next, schema::ElementBytes(dtype)});
    next += schema::ElementBytes(dtype);
    return element;
  }
  Json list = Json::array();
  for (uint64_t i = 0; i < shape[0]; ++i) list.push_back(Nested(dtype, shape.subspan(1), next));
  return list;
}

}  // namespace

Result<Slice> ParseSlice(std::string_view text, std::span<const uint64_t> shape) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string_view> parts;
  if (text.find_first_not_of(' ') != std::string_view::npos) parts = Split(text, ',');
  auto ellipsis = std::find(parts.begin(), parts.end(), "...");
  const size_t named = parts.size() - (ellipsis != parts.end());
  if (named > shape.size()) {
    return Refuse(text,
                  fmt::format("{0} dimensions, but the tensor has {1}: {2}; write at most {1} "
                              "ranges",
                              named, shape.size(), ShapeText(shape)));
  }
  if (ellipsis == parts.end()) ellipsis = parts.insert(parts.end(), "...");
  const auto ellipsis_index = static_cast<size_t>(ellipsis - parts.begin());
  parts.erase(ellipsis);
  parts.insert(parts.begin() + static_cast<ptrdiff_t>(ellipsis_index), shape.size() - named, ":");
  Slice slice;
  for (size_t i = 0; i < parts.size(); ++i) CAIRN_TRY(AddDimension(parts[i], shape[i], slice));
  return slice;
}

ArrayLayout::ArrayLayout(std::span<const uint64_t> sizes, bool whole) : dimensions_(sizes.size()) {
  uint64_t cells = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    Dimension& dimension = dimensions_[d];
    dimension = {.size = sizes[d], .head = sizes[d]};
    if (!whole && sizes[d] > 2 * kEdge) dimension = {sizes[d], kEdge, kEdge};
    if (!whole && cells * (dimension.head + dimension.tail) > kMaxEdgeCells) {
      dimension = {sizes[d], 1, 0};
    }
    if (!whole) cells *= dimension.head + dimension.tail;
  }
}

uint64_t ArrayLayout::cell_count() const {
  uint64_t count = 1;
  for (size_t d = 0; d < rank(); ++d) count *= shown(d);
  return count;
}

std::vector<uint64_t> ArrayLayout::strides() const {
  std::vector<uint64_t> strides(rank(), 1);
  for (size_t d = rank(); d-- > 1;) strides[d - 1] = strides[d] * shown(d);
  return strides;
}

std::vector<ArrayLayout::EdgeBox> ArrayLayout::edge_boxes() const {
  if (cell_count() == 0) return {};
  const std::vector<uint64_t> steps = strides();
  std::vector<EdgeBox> boxes = {EdgeBox{}};
  for (size_t d = 0; d < rank(); ++d) {
    const Dimension& dimension = dimensions_[d];
    std::vector<EdgeBox> extended;
    for (const EdgeBox& box : boxes) {
      EdgeBox head = box;
      head.source_offsets.push_back(0);
      head.sizes.push_back(dimension.head);
      extended.push_back(std::move(head));
      if (dimension.tail == 0) continue;
      EdgeBox tail = box;
      tail.source_offsets.push_back(dimension.size - dimension.tail);
      tail.sizes.push_back(dimension.tail);
      tail.cell_offset += dimension.head * steps[d];
      extended.push_back(std::move(tail));
    }
    boxes = std::move(extended);
  }
  return boxes;
}

std::string ArrayText(core::DType dtype, const ArrayLayout& layout,
                      const std::vector<bool>& dropped, std::span<const std::byte> cells,
                      uint32_t width_columns) {
  if (layout.cell_count() == 0) return "[]";
  return Printer(dtype, layout, dropped, cells, width_columns).Print();
}

Json ArrayJson(core::DType dtype, std::span<const uint64_t> shape,
               std::span<const std::byte> values) {
  if (values.empty()) return Json::array();
  const std::byte* next = values.data();
  return Nested(dtype, shape, next);
}

}  // namespace cairn::tools
