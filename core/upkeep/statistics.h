#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Statistics of a stored tensor.

#include "core/checkpoint_store.h"
#include "core/tensor/element_statistics.h"

namespace cairn::core {

/// Computes the statistics of a stored tensor, streamed in bounded memory. Errors: see
/// CheckpointStore::Load.
Result<Statistics> ComputeStatistics(const CheckpointStore& store, const kv::StepInfo& step,
                                     const TensorInfo& tensor);

}  // namespace cairn::core
