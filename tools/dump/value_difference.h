#pragma once
/// By how much the values of two tensors of the same dtype and shape differ.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "schema/dtype.h"
#include "tools/common/json.h"

namespace cairn::tools {

struct ValueDifference {
  uint64_t elements = 0;            // elements of either tensor
  uint64_t differing_elements = 0;  // elements with different bits
  uint64_t not_comparable = 0;      // NaN or Inf in one tensor only, or different ones in both
  double largest_absolute = 0;      // over the comparable elements
  bool numeric = false;             // false: the dtype has no numbers, only bits were compared
};

/// Returns |a - b|, which is NaN or infinite if an element is; the difference of 64-bit integers is
/// exact before it is rounded to a double. Nothing for float4_e2m1fn_x2 and unknown dtypes, whose
/// elements are not single numbers. Requires ElementBytes(dtype) bytes each.
std::optional<double> Distance(schema::DType dtype, std::span<const std::byte> a,
                               std::span<const std::byte> b);

/// Adds the elements of `a` and `b`, pair by pair, to `difference`, except for their count.
/// Requires equal sizes, a multiple of ElementBytes(dtype).
void AddDifferences(schema::DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                    ValueDifference& difference);

/// Compares a tensor of step `a` with the one of step `b` that has the same name. Requires that
/// both have the dtype and shape of `tensor`. kResourceExhausted: see core::CheckRepeats.
/// kCancelled: `progress`, which receives bytes, asked to stop. Other errors: see
/// CheckpointStore::Load. Memory: 32 MiB, and a load.
Result<ValueDifference> CompareTensors(const core::CheckpointStore& store, const kv::StepInfo& a,
                                       const kv::StepInfo& b, const core::TensorInfo& tensor,
                                       const core::Progress& progress);

/// Returns an object with the numbers of elements and the largest difference.
Json DifferenceJson(const ValueDifference& difference);

}  // namespace cairn::tools
