// Composes the maps of a tensor with the change of its shape.

#include "core/convert/internal/shape_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "core/step/internal/tensor_records.h"
#include "core/tensor/element_cast.h"
#include "kv/base/div.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kMaxParts = 1 << 20;  // of one key
constexpr size_t kMaxPieces = 1 << 22;   // of one key

std::string ShapeOf(const ConvertedKey& key) { return FormatNumbers(key.shape); }

/// The dimension of the rule. `dims` is the number of dimensions to choose from.
Result<size_t> DimOf(const Rule& rule, const ConvertedKey& key, size_t dims) {
  const bool fits = rule.from_end ? rule.dim <= dims : rule.dim < dims;
  if (!fits) {
    return rule.Fails(fmt::format("the tensor of shape {} has no dimension {}{}", ShapeOf(key),
                                  rule.from_end ? "-" : "", rule.dim),
                      key.fqn);
  }
  return rule.from_end ? dims - rule.dim : rule.dim;
}

/// The range [begin, begin + size) of a dimension, as a tensor.
ConvertedKey RangeOf(const ConvertedKey& key, size_t dim, uint64_t begin, uint64_t size) {
  ConvertedKey part{.fqn = key.fqn,
                    .is_tensor = true,
                    .source = key.source,
                    .dtype = key.dtype,
                    .shape = key.shape,
                    .pieces = {},
                    .is_whole = key.is_whole && size == key.shape[dim]};
  Box box = WholeBox(key.shape);
  box.offsets[dim] = begin;
  box.sizes[dim] = size;
  part.shape[dim] = size;
  for (const SourcePiece& piece : key.pieces) {
    for (IndexMap& map : ClipTarget(piece.map, box)) {
      map.target_offsets[dim] -= begin;
      part.pieces.push_back({piece.source, std::move(map), piece.scale});
    }
  }
  return part;
}

Result<void> CheckSameForm(const Rule& rule, const std::vector<ConvertedKey>& parts,
                           std::optional<size_t> free_dim) {
  const ConvertedKey& first = parts.front();
  for (const ConvertedKey& part : parts) {
    bool fits = part.dtype == first.dtype && part.shape.size() == first.shape.size();
    for (size_t d = 0; fits && d < part.shape.size(); ++d) {
      fits = d == free_dim || part.shape[d] == first.shape[d];
    }
    if (!fits) {
      return rule.Fails(
          fmt::format("it is {} {}, but '{}' is {} {}", schema::DTypeName(part.dtype),
                      ShapeOf(part), first.fqn, schema::DTypeName(first.dtype), ShapeOf(first)),
          part.fqn);
    }
  }
  return {};
}

/// A dimension that is read as several: an index is the sum of one digit per factor times its step.
struct Factors {
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> steps;      // before the rearrangement, descending
  std::vector<uint64_t> new_steps;  // after it
};

/// Rewrites the target indices of a map in one dimension. Where an axis changes more than one
/// digit, it is divided: into two axes if possible, otherwise into two maps.
class Rearrangement {
 public:
  Rearrangement(const Rule& rule, size_t dim, const Factors& factors)
      : rule_(rule), dim_(dim), factors_(factors) {}

  Result<void> Run(IndexMap map, std::vector<IndexMap>& parts) const {
    const size_t count = factors_.sizes.size();
    std::vector<uint64_t> digits(count);
    for (size_t j = 0; j < count; ++j) {
      digits[j] = map.target_offsets[dim_] / factors_.steps[j] % factors_.sizes[j];
    }
    std::vector<uint64_t> last = digits;
    for (size_t a = 0; a < map.axes.size(); ++a) {
      const IndexAxis& axis = map.axes[a];
      if (axis.target_dim != dim_) continue;
      const size_t j = FactorOf(axis);
      if (axis.target_step % factors_.steps[j] != 0) return Cut(std::move(map), a, 1, parts);
      last[j] += (axis.size - 1) * (axis.target_step / factors_.steps[j]);
    }
    for (size_t j = 0; j < count; ++j) {
      if (last[j] >= factors_.sizes[j]) return Divide(std::move(map), j, digits[j], parts);
    }
    if (parts.size() >= kMaxPieces) return rule_.Fails("it divides a tensor into too many pieces");
    parts.push_back(Rewritten(std::move(map), digits));
    return {};
  }

 private:
  size_t FactorOf(const IndexAxis& axis) const {
    size_t j = 0;
    while (factors_.steps[j] > axis.target_step) ++j;
    return j;
  }

  /// Divides the outermost axis of factor `j`, whose digit would exceed the factor.
  Result<void> Divide(IndexMap map, size_t j, uint64_t digit, std::vector<IndexMap>& parts) const {
    size_t outermost = map.axes.size();
    for (size_t a = 0; a < map.axes.size(); ++a) {
      if (map.axes[a].target_dim != dim_ || FactorOf(map.axes[a]) != j) continue;
      if (outermost == map.axes.size() ||
          map.axes[a].target_step > map.axes[outermost].target_step) {
        outermost = a;
      }
    }
    IndexAxis& axis = map.axes[outermost];
    const uint64_t step = axis.target_step / factors_.steps[j];
    const uint64_t per_block = factors_.sizes[j] / step;
    const bool fills_blocks = digit == 0 && step * per_block == factors_.sizes[j];
    if (fills_blocks && axis.size % per_block == 0 && per_block > 1) {
      IndexAxis outer = axis;
      outer.size = axis.size / per_block;
      outer.source_step = axis.source_step * per_block;
      outer.target_step = axis.target_step * per_block;
      axis.size = per_block;
      if (outer.size > 1) map.axes.push_back(outer);
      return Run(std::move(map), parts);
    }
    uint64_t head = DivCeil(factors_.sizes[j] - digit, step);
    if (fills_blocks && axis.size > per_block) head = axis.size - axis.size % per_block;
    const uint64_t size = axis.size;
    return Cut(std::move(map), outermost, std::clamp<uint64_t>(head, 1, size - 1), parts);
  }

  /// Continues with the indices of an axis below `head`, and with the others.
  Result<void> Cut(IndexMap map, size_t a, uint64_t head, std::vector<IndexMap>& parts) const {
    const IndexAxis axis = map.axes[a];
    for (const auto& [begin, end] : {std::pair(uint64_t{0}, head), std::pair(head, axis.size)}) {
      IndexMap part = map;
      part.source_offsets[axis.source_dim] += begin * axis.source_step;
      part.target_offsets[dim_] += begin * axis.target_step;
      part.axes[a].size = end - begin;
      if (end - begin == 1) part.axes.erase(part.axes.begin() + static_cast<ptrdiff_t>(a));
      CAIRN_TRY(Run(std::move(part), parts));
    }
    return {};
  }

  IndexMap Rewritten(IndexMap map, const std::vector<uint64_t>& digits) const {
    uint64_t offset = 0;
    for (size_t j = 0; j < digits.size(); ++j) offset += digits[j] * factors_.new_steps[j];
    map.target_offsets[dim_] = offset;
    for (IndexAxis& axis : map.axes) {
      if (axis.target_dim != dim_) continue;
      const size_t j = FactorOf(axis);
      axis.target_step = axis.target_step / factors_.steps[j] * factors_.new_steps[j];
    }
    return map;
  }

  const Rule& rule_;
  const size_t dim_;
  const Factors& factors_;
};

Result<Factors> FactorsOf(const Rule& rule, const ConvertedKey& key, size_t dim) {
  Factors factors{.sizes = rule.factors, .steps = {}, .new_steps = {}};
  uint64_t known = 1;
  for (const uint64_t size : factors.sizes) {
    if (size != 0 && __builtin_mul_overflow(known, size, &known)) known = 0;
  }
  const uint64_t extent = key.shape[dim];
  const auto open = std::ranges::find(factors.sizes, uint64_t{0});
  const bool fits =
      known != 0 && (open == factors.sizes.end() ? extent == known : extent % known == 0);
  if (!fits) {
    return rule.Fails(fmt::format("dimension {} of the shape {} is not the product of the factors",
                                  dim, ShapeOf(key)),
                      key.fqn);
  }
  if (open != factors.sizes.end()) *open = extent / known;
  const size_t count = factors.sizes.size();
  factors.steps.resize(count);
  factors.new_steps.resize(count);
  uint64_t step = 1;
  for (size_t j = count; j-- > 0; step *= factors.sizes[j]) factors.steps[j] = step;
  step = 1;
  for (size_t j = count; j-- > 0; step *= factors.sizes[rule.order[j]]) {
    factors.new_steps[rule.order[j]] = step;
  }
  return factors;
}

}  // namespace

Result<void> Split(const Rule& rule, ConvertedKey key, const std::vector<std::string>& names,
                   std::vector<ConvertedKey>& out) {
  CAIRN_TRY_ASSIGN(const size_t dim, DimOf(rule, key, key.shape.size()));
  const uint64_t extent = key.shape[dim];
  std::vector<uint64_t> sizes = rule.sizes;
  if (sizes.empty()) {
    if (extent % names.size() != 0) {
      return rule.Fails(fmt::format("dimension {} of the shape {} cannot be divided into {} equal "
                                    "parts; give 'sizes'",
                                    dim, ShapeOf(key), names.size()),
                        key.fqn);
    }
    sizes.assign(names.size(), extent / names.size());
  }
  uint64_t total = 0;  // cannot overflow: each is at most 2^48, and the JSON has at most 2^24 bytes
  for (const uint64_t size : sizes) total += size;
  if (total != extent) {
    return rule.Fails(fmt::format("the sizes are {} in total, but dimension {} of the shape {} is "
                                  "not",
                                  total, dim, ShapeOf(key)),
                      key.fqn);
  }
  uint64_t begin = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    ConvertedKey part = RangeOf(key, dim, begin, sizes[i]);
    part.fqn = names[i];
    out.push_back(std::move(part));
    begin += sizes[i];
  }
  return {};
}

Result<void> Unstack(const Rule& rule, ConvertedKey key, const std::string& name,
                     std::vector<ConvertedKey>& out) {
  CAIRN_TRY_ASSIGN(const size_t dim, DimOf(rule, key, key.shape.size()));
  if (key.shape[dim] > kMaxParts) {
    return rule.Fails(fmt::format("the shape {} has too many parts", ShapeOf(key)), key.fqn);
  }
  const auto at = static_cast<ptrdiff_t>(dim);
  const size_t placeholder = name.find("{i}");
  for (uint64_t i = 0; i < key.shape[dim]; ++i) {
    ConvertedKey part = RangeOf(key, dim, i, 1);
    part.is_whole = false;
    part.shape.erase(part.shape.begin() + at);
    for (SourcePiece& piece : part.pieces) {
      piece.map.target_offsets.erase(piece.map.target_offsets.begin() + at);
      for (IndexAxis& axis : piece.map.axes) {
        if (axis.target_dim > dim) --axis.target_dim;
      }
    }
    part.fqn = name;
    part.fqn.replace(placeholder, 3, std::to_string(i));
    out.push_back(std::move(part));
  }
  return {};
}

Result<ConvertedKey> Concat(const Rule& rule, std::vector<ConvertedKey> parts, std::string name) {
  CAIRN_TRY_ASSIGN(const size_t dim, DimOf(rule, parts[0], parts[0].shape.size()));
  CAIRN_TRY(CheckSameForm(rule, parts, dim));
  ConvertedKey joined = parts[0];
  joined.fqn = std::move(name);
  joined.is_whole = joined.is_whole && parts.size() == 1;
  for (size_t i = 1; i < parts.size(); ++i) {
    for (SourcePiece& piece : parts[i].pieces) {
      piece.map.target_offsets[dim] += joined.shape[dim];
      joined.pieces.push_back(std::move(piece));
    }
    joined.shape[dim] += parts[i].shape[dim];
  }
  return joined;
}

Result<ConvertedKey> Stack(const Rule& rule, std::vector<ConvertedKey> parts, std::string name) {
  CAIRN_TRY_ASSIGN(const size_t dim, DimOf(rule, parts[0], parts[0].shape.size() + 1));
  CAIRN_TRY(CheckSameForm(rule, parts, std::nullopt));
  ConvertedKey joined = parts[0];
  joined.fqn = std::move(name);
  joined.is_whole = false;
  joined.pieces.clear();
  const auto at = static_cast<ptrdiff_t>(dim);
  joined.shape.insert(joined.shape.begin() + at, parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    for (SourcePiece& piece : parts[i].pieces) {
      auto& offsets = piece.map.target_offsets;
      offsets.insert(offsets.begin() + at, i);
      for (IndexAxis& axis : piece.map.axes) {
        if (axis.target_dim >= dim) ++axis.target_dim;
      }
      joined.pieces.push_back(std::move(piece));
    }
  }
  return joined;
}

Result<void> Permute(const Rule& rule, ConvertedKey& key) {
  if (rule.order.size() != key.shape.size()) {
    return rule.Fails(fmt::format("the tensor of shape {} does not have {} dimensions",
                                  ShapeOf(key), rule.order.size()),
                      key.fqn);
  }
  Shape shape;
  std::vector<size_t> place(rule.order.size());  // by old dimension
  for (size_t d = 0; d < rule.order.size(); ++d) {
    shape.push_back(key.shape[rule.order[d]]);
    place[rule.order[d]] = d;
  }
  key.shape = std::move(shape);
  key.is_whole = false;
  for (SourcePiece& piece : key.pieces) {
    std::vector<uint64_t> offsets(place.size());
    for (size_t d = 0; d < place.size(); ++d) offsets[place[d]] = piece.map.target_offsets[d];
    piece.map.target_offsets = std::move(offsets);
    for (IndexAxis& axis : piece.map.axes) axis.target_dim = place[axis.target_dim];
  }
  return {};
}

Result<void> Rearrange(const Rule& rule, ConvertedKey& key) {
  CAIRN_TRY_ASSIGN(const size_t dim, DimOf(rule, key, key.shape.size()));
  CAIRN_TRY_ASSIGN(const Factors factors, FactorsOf(rule, key, dim));
  key.is_whole = false;
  const Rearrangement rearrangement(rule, dim, factors);
  std::vector<SourcePiece> pieces;
  for (SourcePiece& piece : key.pieces) {
    std::vector<IndexMap> parts;
    CAIRN_TRY(rearrangement.Run(std::move(piece.map), parts));
    for (IndexMap& part : parts) pieces.push_back({piece.source, std::move(part), piece.scale});
  }
  key.pieces = std::move(pieces);
  return {};
}

Result<void> CheckScale(const Rule& rule, const ConvertedKey& weight, const ConvertedKey& scale,
                        std::span<const SourceKey> sources) {
  const bool is_float8 = weight.dtype == DType::kFloat8E4M3FN || weight.dtype == DType::kFloat8E5M2;
  if (!weight.is_whole || weight.shape.size() != 2 || !is_float8) {
    return rule.Fails(fmt::format("'{}' is not a stored matrix of 8-bit floats, but {} {}",
                                  weight.fqn, schema::DTypeName(weight.dtype), ShapeOf(weight)),
                      scale.fqn);
  }
  const Shape expected = {DivCeil(weight.shape[0], rule.block),
                          DivCeil(weight.shape[1], rule.block)};
  const bool fits = scale.is_whole && sources[scale.source].dtype == DType::kFloat32 &&
                    scale.dtype == DType::kFloat32 && scale.shape == expected;
  if (!fits) {
    return rule.Fails(
        fmt::format("the factors are {} {}, but blocks of {} x {} of '{}' {} need float32 {}",
                    schema::DTypeName(scale.dtype), ShapeOf(scale), rule.block, rule.block,
                    weight.fqn, ShapeOf(weight), FormatNumbers(expected)),
        scale.fqn);
  }
  return {};
}

std::optional<uint64_t> ParsePosition(std::string_view digits) {
  uint64_t position = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), position);
  const bool has_zeros = digits.size() > 1 && digits.front() == '0';
  if (error != std::errc() || end != digits.end() || has_zeros) return std::nullopt;
  return position;
}

}  // namespace cairn::core::internal
