#pragma once
/// Maps tensors of one step.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Map.
Result<std::vector<std::optional<MappedTensor>>> RunMap(const StepView& view,
                                                        std::span<const std::string> fqns,
                                                        bool verify, const Progress& progress);

}  // namespace cairn::core::internal
