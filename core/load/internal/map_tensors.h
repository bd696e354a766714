#pragma once
/// Maps tensors of one step.

#include <span>
#include <string>

#include "core/load/map.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::MapUnchecked.
Result<UncheckedMap> RunMap(StepView view, std::span<const std::string> fqns);

}  // namespace cairn::core::internal
