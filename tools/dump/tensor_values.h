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
#include "core/inspect/value_difference.h"
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

using core::ValueDifference;

/// Compares a tensor of two steps. kNotFound: a step does not have it. kInvalidArgument: dtype or
/// shape differ. Other errors: see core::CompareValues.
Result<ValueDifference> CompareTensor(const core::CheckpointStore& store, const kv::StepInfo& a,
                                      const kv::StepInfo& b, const std::string& fqn,
                                      const core::Progress& progress);

/// Returns an object with the numbers of elements and the largest difference.
Json DifferenceJson(const ValueDifference& difference);
/// "1.2 % of elements, by up to 0.5".
std::string DifferenceText(const ValueDifference& difference);

}  // namespace cairn::tools
