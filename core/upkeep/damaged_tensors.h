#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Finds the damaged tensors of a step, so that the rest can still be read.

#include <span>
#include <vector>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "kv/base/error.h"

namespace cairn::core {

/// Reads all bytes of `tensors`, which are of `step`, as a load does, and keeps none. Returns an
/// error for each tensor that cannot be read because the store is damaged, with the FQN in
/// Error::key. Tensors that share the bytes of a damaged one are damaged, too, even if they do not
/// use its damaged part. Reads about as much as a load of all tensors, and twice near damage.
/// Memory: as ReadRowMajor. Errors: see CheckpointStore::Load, except kDataLoss.
Result<std::vector<Error>> FindDamagedTensors(const CheckpointStore& store,
                                              const kv::StepInfo& step,
                                              std::span<const TensorInfo> tensors,
                                              const Progress& progress = {});

}  // namespace cairn::core
