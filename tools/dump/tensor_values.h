#pragma once
/// Values of stored tensors, read for people: statistics, distributions, the elements that are
/// shown, and how they differ between two steps.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "core/step/contents.h"
#include "core/tensor/element_statistics.h"
#include "core/tensor/tensor.h"
#include "kv/base/step_info.h"
#include "tools/common/json.h"
#include "tools/dump/array_text.h"

namespace cairn::tools {

/// Arrays with more elements show only their edges, as in numpy.
inline constexpr uint64_t kMaxShownElements = 1000;

/// A box of a stored tensor. The functions below return the errors of CheckpointStore::Load, and
/// kCancelled if their callback asks to stop.
struct TensorPart {
  const core::CheckpointStore* store = nullptr;
  kv::StepInfo step;
  core::TensorInfo tensor;
  core::Box box;
};

/// Returns whether statistics of the part can be computed. If it repeats a few elements very often,
/// only its values are shown.
Result<bool> CanReadAll(const TensorPart& part);

/// Computes the statistics of all elements. Memory: 16 MiB, and a load.
Result<core::Statistics> MeasureStatistics(const TensorPart& part, const core::Progress& progress);

struct Distribution {
  uint64_t elements = 0;  // elements of the part
  uint64_t read_elements = 0;
  core::Statistics statistics;               // over the elements that were read
  std::optional<core::Histogram> histogram;  // over the same; empty without finite values
};

/// Computes the distribution of all elements, or, if they are more than `max_bytes`, of about
/// `max_bytes` in parts of 1 MiB at equal distances. Reads the elements twice.
Result<Distribution> MeasureDistribution(const TensorPart& part, uint64_t max_bytes,
                                         const core::Progress& progress);

/// Loads the elements that the layout shows.
Result<std::vector<std::byte>> LoadShown(const TensorPart& part, const ArrayLayout& layout);

/// Integers of any size are exact; a bound is null if there are no elements to take it from.
Json StatisticsJson(core::DType dtype, const core::Statistics& statistics);

struct ValueDifference {
  uint64_t elements = 0;            // elements of either tensor
  uint64_t differing_elements = 0;  // elements with different bits
  uint64_t not_comparable = 0;      // NaN or Inf in one tensor only, or different ones in both
  double largest_absolute = 0;      // over the comparable elements
  bool numeric = false;             // false: the dtype has no numbers, only bits were compared
};

/// Returns the tensor of a name, which has one dtype and shape in both steps. kNotFound: a step
/// does not have it. kInvalidArgument: dtype or shape differ.
Result<core::TensorInfo> FindComparable(const core::CheckpointStore& store, const kv::StepInfo& a,
                                        const kv::StepInfo& b, const std::string& fqn);

/// Compares a tensor of step `a` with the one of step `b` that has the same name. Requires that
/// both have the dtype and shape of `tensor`. kResourceExhausted: see core::CheckRepeats.
/// kCancelled: `progress`, which receives bytes, asked to stop. Other errors: see
/// CheckpointStore::Load. Memory: 32 MiB, and a load.
Result<ValueDifference> CompareTensors(const core::CheckpointStore& store, const kv::StepInfo& a,
                                       const kv::StepInfo& b, const core::TensorInfo& tensor,
                                       const core::Progress& progress);

/// Returns an object with the numbers of elements and the largest difference.
Json DifferenceJson(const ValueDifference& difference);
/// "1.2 % of elements, by up to 0.5".
std::string DifferenceText(const ValueDifference& difference);

}  // namespace cairn::tools
