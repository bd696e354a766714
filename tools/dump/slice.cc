// Slices on the command line, as Python writes them.

#include "tools/dump/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

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

}  // namespace cairn::tools
