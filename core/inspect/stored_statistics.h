#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Statistics of a tensor as its save recorded them, so that no payload is read.

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/step/contents.h"
#include "kv/base/chunk_record.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/store.h"

namespace cairn::core {

/// core/tensor/element_statistics.h defines which elements count as values.
struct StoredStatistics : kv::ChunkStatistics {
  uint64_t count = 0;

  double abs_max() const { return std::fmax(std::fabs(min), std::fabs(max)); }
};

/// Returns what the save of `step` recorded about the values of each tensor
/// (SaveOptions::statistics); nothing for an alias, and for a tensor of which a chunk has none.
/// Reads no payload. Requires that `tensors` belong to `step` and ascend by FQN, as in the result
/// of CheckpointStore::List. Errors: see CheckpointStore::ForEachChunk.
Result<std::vector<std::optional<StoredStatistics>>> FindStatistics(
    const kv::Store& store, const kv::StepInfo& step, std::span<const TensorInfo> tensors);
}  // namespace cairn::core
