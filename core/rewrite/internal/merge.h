#pragma once
/// Makes a step whose tensors are weighted means of the tensors of other steps.

#include <cstdint>
#include <span>

#include "core/rewrite/step_merge.h"
#include "kv/base/error.h"
#include "kv/io/worker_pool.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// Contract: CheckpointStore::Merge. Requires that no save is running.
Result<MergeReport> RunMerge(kv::Store& store, std::span<const uint64_t> steps, uint64_t into,
                             const MergeOptions& options, kv::WorkerPool& pool);

}  // namespace cairn::core::internal
