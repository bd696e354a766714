#pragma once
/// Applies SaveOptions::unchanged to a plan.

#include <cstdint>

#include "core/save/internal/save_plan.h"
#include "core/save/save_options.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// Marks the shards in host memory of which the caller states that they have not changed, and
/// chooses one of their chunks to be compared nevertheless: another one for each step. Removes the
/// marks of an earlier save of the same plan. kInvalidArgument: a pattern is not valid.
Result<void> MarkStatedUnchanged(SavePlan& plan, const SaveOptions& options, uint64_t step);

/// Chooses the chunk to be compared in a plan that has the marks of MarkStatedUnchanged.
void ChooseComparedChunk(SavePlan& plan, uint64_t step);

/// The error for a compared chunk that has changed.
Error NotUnchangedError(const std::string& fqn);

}  // namespace cairn::core::internal
