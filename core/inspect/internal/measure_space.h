#pragma once
/// Adds up the bytes of a step's chunks by the first elements of their keys.

#include <cstdint>
#include <vector>

#include "core/base/progress.h"
#include "core/inspect/space.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/internal/lookup.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// Returns one element per prefix of at most `depth` path elements, in key order. `depth` 0 returns
/// one element per tensor. Reads no payload. kDataLoss: a record is damaged.
Result<std::vector<SpaceUse>> MeasureSpace(const StepView& view, const KeyPatterns& patterns,
                                           uint64_t depth, const Progress& progress);

}  // namespace cairn::core::internal
