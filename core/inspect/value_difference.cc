// Boxes that are read together are compared on all cores.

#include "core/inspect/value_difference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "core/load/internal/load.h"
#include "core/load/internal/read_boxes.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/element_statistics.h"
#include "kv/io/worker_pool.h"
#include "schema/dtype.h"

namespace cairn::core {
namespace internal {
namespace {

constexpr uint64_t kBoxBytes = 4 << 20;
constexpr size_t kBatchTensors = 1024;

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

/// Returns |a - b|, which is NaN or infinite if an element is; the difference of 64-bit integers is
/// exact before it is rounded to a double. Nothing for float4_e2m1fn_x2 and unknown dtypes, whose
/// elements are not single numbers.
std::optional<double> Distance(DType dtype, std::span<const std::byte> a,
                               std::span<const std::byte> b) {
  if (dtype == DType::kInt64) return IntegerDistance<int64_t>(a.data(), b.data());
  if (dtype == DType::kUInt64) return IntegerDistance<uint64_t>(a.data(), b.data());
  const auto x = ElementValue(dtype, a);
  const auto y = ElementValue(dtype, b);
  if (!x || !y) return std::nullopt;
  return std::abs(*x - *y);
}

/// Adds the elements of `a` and `b`, pair by pair, to `difference`, except for their count.
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

/// Compares a few tensors, which ascend by FQN. Adds the bytes that were loaded to `loaded_bytes`.
Result<void> CompareBatch(const kv::Store& store, const kv::StepInfo& a, const kv::StepInfo& b,
                          std::span<const std::string> fqns,
                          std::span<std::optional<ValueDifference>> differences,
                          const Progress& progress, uint64_t& loaded_bytes) {
  const std::vector<std::string_view> names(fqns.begin(), fqns.end());
  std::vector<TensorInfo> tensors[2];
  BoxLoad loads[2];
  for (const bool is_b : {false, true}) {
    const kv::StepInfo& step = is_b ? b : a;
    CAIRN_TRY_ASSIGN(tensors[is_b], WithStep(store, step, [&](const StepView& view) {
                       return FindTensors(view, names);
                     }));
    const std::span<const TensorInfo> known = tensors[is_b];
    loads[is_b] = [&store, &step, &progress, &loaded_bytes,
                   known](std::span<const LoadRequest> requests) {
      Progress half;
      if (progress) {
        half = [&](uint64_t bytes, uint64_t) { return progress((loaded_bytes + bytes) / 2, 0); };
      }
      auto loaded = WithStep(store, step, [&](const StepView& view) {
        return RunLoad(view, requests, half, {}, known);
      });
      for (const LoadRequest& request : requests) {
        loaded_bytes += *TensorBytes(request.target.dtype, request.target.shape);
      }
      return loaded;
    };
  }
  std::vector<TensorInfo> common;  // in both steps
  std::vector<ValueDifference*> sums;
  for (size_t i = 0; i < fqns.size(); ++i) {
    const TensorInfo& tensor = tensors[0][i];
    if (tensor.dtype != tensors[1][i].dtype || tensor.shape != tensors[1][i].shape) continue;
    CAIRN_TRY(CheckRepeats({&tensor, 1}));
    common.push_back(tensor);
    sums.push_back(&differences[i].emplace());
    CAIRN_TRY_ASSIGN(sums.back()->elements, ElementCount(tensor.shape));
  }
  CAIRN_TRY(ReadBoxes(loads, common, kBoxBytes, [&](std::span<const LoadedBox> boxes) {
    std::vector<ValueDifference> compared(boxes.size());
    kv::ParallelFor(boxes.size(), [&](size_t i, size_t) {
      const auto& [tensor, offset_bytes, bytes] = boxes[i];
      AddDifferences(common[tensor].dtype, bytes[0], bytes[1], compared[i]);
    });
    for (size_t i = 0; i < boxes.size(); ++i) {
      ValueDifference& sum = *sums[boxes[i].tensor];
      sum.differing_elements += compared[i].differing_elements;
      sum.not_comparable += compared[i].not_comparable;
      sum.largest_absolute = std::max(sum.largest_absolute, compared[i].largest_absolute);
      sum.numeric |= compared[i].numeric;
    }
    return Result<void>();
  }));
  return {};
}

}  // namespace
}  // namespace internal

Result<std::vector<std::optional<ValueDifference>>> CompareValues(const kv::Store& store,
                                                                  const kv::StepInfo& a,
                                                                  const kv::StepInfo& b,
                                                                  std::span<const std::string> fqns,
                                                                  const Progress& progress) {
  std::vector<std::optional<ValueDifference>> differences(fqns.size());
  uint64_t loaded_bytes = 0;
  for (size_t begin = 0; begin < fqns.size(); begin += internal::kBatchTensors) {
    const size_t count = std::min(internal::kBatchTensors, fqns.size() - begin);
    CAIRN_TRY(internal::CompareBatch(store, a, b, fqns.subspan(begin, count),
                                     std::span(differences).subspan(begin, count), progress,
                                     loaded_bytes));
  }
  return differences;
}

}  // namespace cairn::core
