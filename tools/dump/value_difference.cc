// By how much the values of two tensors of the same dtype and shape differ.

#include "tools/dump/value_difference.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <vector>

#include "core/load/load_options.h"
#include "core/step/contents.h"
#include "core/tensor/chunk_grid.h"
#include "core/tensor/element_statistics.h"

namespace cairn::tools {
namespace {

using schema::DType;

/// Both steps are read in parts of this size.
constexpr uint64_t kComparedBytes = 16 << 20;

/// Subtracts before it rounds, because adjacent integers above 2^53 are the same double.
template <typename Integer>
double IntegerDistance(const std::byte* a, const std::byte* b) {
  Integer x, y;
  std::memcpy(&x, a, sizeof(x));
  std::memcpy(&y, b, sizeof(y));
  const uint64_t difference = x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                                    : static_cast<uint64_t>(y) - static_cast<uint64_t>(x);
  return static_cast<double>(difference);
}

}  // namespace

std::optional<double> Distance(DType dtype, std::span<const std::byte> a,
                               std::span<const std::byte> b) {
  if (dtype == DType::kInt64) return IntegerDistance<int64_t>(a.data(), b.data());
  if (dtype == DType::kUInt64) return IntegerDistance<uint64_t>(a.data(), b.data());
  const auto x = core::ElementValue(dtype, a);
  const auto y = core::ElementValue(dtype, b);
  if (!x || !y) return std::nullopt;
  return std::abs(*x - *y);
}

void AddDifferences(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                    ValueDifference& difference) {
  const uint64_t element_bytes = schema::ElementBytes(dtype);
  for (uint64_t at = 0; at < a.size(); at += element_bytes) {
    if (std::memcmp(a.data() + at, b.data() + at, element_bytes) == 0) continue;
    ++difference.differing_elements;
    const auto distance =
        Distance(dtype, a.subspan(at, element_bytes), b.subspan(at, element_bytes));
    if (!distance) continue;
    difference.numeric = true;
    if (std::isfinite(*distance)) {
      difference.largest_absolute = std::max(difference.largest_absolute, *distance);
    } else {
      ++difference.not_comparable;
    }
  }
}

Result<ValueDifference> CompareTensors(const core::CheckpointStore& store, const kv::StepInfo& a,
                                       const kv::StepInfo& b, const core::TensorInfo& tensor,
                                       const core::Progress& progress) {
  CAIRN_TRY(core::CheckRepeats({&tensor, 1}));
  ValueDifference difference;
  CAIRN_TRY_ASSIGN(difference.elements, core::ElementCount(tensor.shape));
  CAIRN_TRY_ASSIGN(const auto grid,
                   core::ChunkGrid::Make(tensor.dtype, tensor.shape, kComparedBytes));
  std::vector<std::byte> in_a, in_b;
  for (uint64_t i = 0; i < grid.chunk_count(); ++i) {
    if (progress && !progress(grid.offset_bytes(i), tensor.nbytes)) {
      return Fail(ErrorCode::kCancelled, "stopped on request");
    }
    const core::Box box = grid.chunk(i);
    in_a.resize(grid.length_bytes(i));
    in_b.resize(in_a.size());
    const core::LoadRequest from_a{tensor.fqn, box, {tensor.dtype, box.sizes, {}, in_a.data()}};
    const core::LoadRequest from_b{tensor.fqn, box, {tensor.dtype, box.sizes, {}, in_b.data()}};
    CAIRN_TRY(store.Load(a, {&from_a, 1}));
    CAIRN_TRY(store.Load(b, {&from_b, 1}));
    AddDifferences(tensor.dtype, in_a, in_b, difference);
  }
  return difference;
}

Json DifferenceJson(const ValueDifference& difference) {
  Json json = {{"elements", difference.elements},
               {"differing_elements", difference.differing_elements}};
  if (difference.numeric) {
    json.Set("largest_absolute_difference", difference.largest_absolute);
    json.Set("not_comparable_elements", difference.not_comparable);
  }
  return json;
}

}  // namespace cairn::tools
