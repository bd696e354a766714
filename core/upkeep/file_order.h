#pragma once
// SPDX-License-Identifier: Apache-2.0
/// In which order tensors are read from their segments without seeks.

#include <cstddef>
#include <span>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/step/contents.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"

namespace cairn::core {

/// Returns the indices of `tensors` in the order of their bytes in the segments of the store: by
/// segment, then by offset. Of a tensor in several places, as after incremental saves, the largest
/// extent counts. An alias is next to the owner of its bytes; tensors without bytes precede all
/// others. Requires that `tensors` are of `step` and ascend by
/// FQN, and that the owners of aliases are among them, as in the result of List.
///
/// Reads the records of chunks, and no payload. Cost: one scan of these records, or one lookup per
/// chunk if the tensors are a small part of the step. Errors: see CheckpointStore::Chunks.
Result<std::vector<size_t>> FileOrder(const CheckpointStore& store, const kv::StepInfo& step,
                                      std::span<const TensorInfo> tensors);

}  // namespace cairn::core
