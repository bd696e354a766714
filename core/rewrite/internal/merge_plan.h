#pragma once
/// Compares the steps of a merge, and decides how each tensor of the new step is computed.

#include <span>
#include <vector>

#include "core/rewrite/internal/mean.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

struct MergePlan {
  Contents contents;            // contents of the last step, and of the new one
  std::vector<MeanKind> kinds;  // by tensor of `contents`; an alias has its owner's kind
};

/// Plans the merge of at least two steps. Reads their records. Memory: the records of two steps.
///
/// kInvalidArgument, which names the keys and steps: a step does not have the same keys as the last
/// one; a tensor has another dtype or shape; tensors share memory in the last step and not in the
/// same way in another; or tensors with different kinds of numbers share memory.
Result<MergePlan> PlanMerge(std::span<const StepView> views);

/// Returns the weights divided by their sum; `count` equal weights if `weights` is empty.
/// kInvalidArgument: there are not `count` weights, or their sum is not positive and finite.
Result<std::vector<double>> NormalizeWeights(std::span<const double> weights, size_t count);

}  // namespace cairn::core::internal
