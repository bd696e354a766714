#pragma once
/// Steps that are made of existing ones. A file of this folder implements each.

#include <cstdint>
#include <span>

#include "core/rewrite/step_edit.h"
#include "core/rewrite/step_merge.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/io/worker_pool.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// Contract: CheckpointStore::Edit. Requires that no save is running.
Result<kv::StepInfo> RunEdit(kv::Store& store, uint64_t source, uint64_t into,
                             const StepEdit& edit);

/// Contract: CheckpointStore::Merge. Requires that no save is running.
Result<MergeReport> RunMerge(kv::Store& store, std::span<const uint64_t> steps, uint64_t into,
                             const MergeOptions& options, kv::WorkerPool& pool);

}  // namespace cairn::core::internal
