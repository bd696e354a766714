// Reads the tensors in batches: of many small tensors, or of one part of a large one. A batch is
// one load from each step, and its parts are compared on all cores.

#include "core/inspect/value_difference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/load/internal/load.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/chunk_grid.h"
#include "core/tensor/element_statistics.h"
#include "kv/io/worker_pool.h"
#include "schema/dtype.h"

namespace cairn::core {
namespace internal {
namespace {

constexpr uint64_t kBatchBytes = 16 << 20;  // from each step
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

/// A box of a tensor, and its bytes in both steps.
struct ComparedPart {
  size_t tensor = 0;  // index in the tensors of both steps
  Box box;
  uint64_t offset_bytes = 0;  // in the memory of the batch
  uint64_t length_bytes = 0;
};

/// Compares a few tensors, which ascend by FQN.
class BatchComparison {
 public:
  BatchComparison(const kv::Store& store, const kv::StepInfo& a, const kv::StepInfo& b,
                  const Progress& progress)
      : store_(store),
        a_{.step = a, .tensors = {}, .bytes = {}},
        b_{.step = b, .tensors = {}, .bytes = {}},
        progress_(progress) {}

  Result<void> Run(std::span<const std::string> fqns,
                   std::span<std::optional<ValueDifference>> differences) {
    const std::vector<std::string_view> names(fqns.begin(), fqns.end());
    for (Side* side : {&a_, &b_}) {
      CAIRN_TRY_ASSIGN(side->tensors, WithStep(store_, side->step, [&](const StepView& view) {
                         return FindTensors(view, names);
                       }));
    }
    differences_ = differences;
    for (size_t i = 0; i < fqns.size(); ++i) {
      const TensorInfo& tensor = a_.tensors[i];
      if (tensor.dtype != b_.tensors[i].dtype || tensor.shape != b_.tensors[i].shape) continue;
      CAIRN_TRY(CheckRepeats({&tensor, 1}));
      differences[i].emplace();
      CAIRN_TRY_ASSIGN(differences[i]->elements, ElementCount(tensor.shape));
      CAIRN_TRY_ASSIGN(const auto grid, ChunkGrid::Make(tensor.dtype, tensor.shape, kBatchBytes));
      for (uint64_t chunk = 0; chunk < grid.chunk_count(); ++chunk) {
        if (bytes_ + grid.length_bytes(chunk) > kBatchBytes) CAIRN_TRY(CompareParts());
        parts_.push_back({.tensor = i,
                          .box = grid.chunk(chunk),
                          .offset_bytes = bytes_,
                          .length_bytes = grid.length_bytes(chunk)});
        bytes_ += parts_.back().length_bytes;
      }
    }
    return CompareParts();
  }

 private:
  struct Side {
    kv::StepInfo step;
    std::vector<TensorInfo> tensors;
    std::vector<std::byte> bytes;  // of the parts
  };

  /// Loads the parts of one side; `loaded_bytes` of the other one are loaded.
  Result<void> Load(Side& side, uint64_t loaded_bytes) {
    side.bytes.resize(std::max<uint64_t>(side.bytes.size(), bytes_));
    std::vector<LoadRequest> requests;
    requests.reserve(parts_.size());
    for (const ComparedPart& part : parts_) {
      const TensorInfo& tensor = side.tensors[part.tensor];
      requests.push_back({.fqn = tensor.fqn,
                          .box = part.box,
                          .target = {.dtype = tensor.dtype,
                                     .shape = part.box.sizes,
                                     .data = side.bytes.data() + part.offset_bytes}});
    }
    Progress half;
    if (progress_) {
      half = [&](uint64_t bytes, uint64_t) {
        return progress_(done_bytes_ + (loaded_bytes + bytes) / 2, 0);
      };
    }
    CAIRN_TRY(WithStep(store_, side.step, [&](const StepView& view) {
      return RunLoad(view, requests, half, {}, side.tensors);
    }));
    return {};
  }

  /// Loads and compares the parts that were collected.
  Result<void> CompareParts() {
    if (parts_.empty()) return {};
    CAIRN_TRY(Load(a_, 0));
    CAIRN_TRY(Load(b_, bytes_));
    std::vector<ValueDifference> compared(parts_.size());
    kv::ParallelFor(parts_.size(), [&](size_t i, size_t) {
      const auto bytes_of = [&](const Side& side) {
        return std::span(side.bytes).subspan(parts_[i].offset_bytes, parts_[i].length_bytes);
      };
      AddDifferences(a_.tensors[parts_[i].tensor].dtype, bytes_of(a_), bytes_of(b_), compared[i]);
    });
    for (size_t i = 0; i < parts_.size(); ++i) {
      ValueDifference& sum = *differences_[parts_[i].tensor];
      sum.differing_elements += compared[i].differing_elements;
      sum.not_comparable += compared[i].not_comparable;
      sum.largest_absolute = std::max(sum.largest_absolute, compared[i].largest_absolute);
      sum.numeric |= compared[i].numeric;
    }
    done_bytes_ += bytes_;
    bytes_ = 0;
    parts_.clear();
    return {};
  }

  const kv::Store& store_;
  Side a_;
  Side b_;
  const Progress& progress_;
  std::span<std::optional<ValueDifference>> differences_;  // of the tensors
  std::vector<ComparedPart> parts_;
  uint64_t bytes_ = 0;  // of the parts
  uint64_t done_bytes_ = 0;
};

}  // namespace
}  // namespace internal

Result<std::vector<std::optional<ValueDifference>>> CompareValues(const kv::Store& store,
                                                                  const kv::StepInfo& a,
                                                                  const kv::StepInfo& b,
                                                                  std::span<const std::string> fqns,
                                                                  const Progress& progress) {
  std::vector<std::optional<ValueDifference>> differences(fqns.size());
  internal::BatchComparison comparison(store, a, b, progress);
  for (size_t begin = 0; begin < fqns.size(); begin += internal::kBatchTensors) {
    const size_t count = std::min(internal::kBatchTensors, fqns.size() - begin);
    CAIRN_TRY(
        comparison.Run(fqns.subspan(begin, count), std::span(differences).subspan(begin, count)));
  }
  return differences;
}

}  // namespace cairn::core
