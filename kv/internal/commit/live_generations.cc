// A set that a mutex guards.

#include "kv/internal/commit/live_generations.h"

namespace cairn::kv::internal {

void LiveGenerations::Set(const std::vector<StepEntry>& steps) {
  const MutexLock lock(mutex_);
  generations_.clear();
  for (const StepEntry& entry : steps) generations_.insert(entry.info.generation);
}

bool LiveGenerations::Contains(uint64_t generation) const {
  const MutexLock lock(mutex_);
  return generations_.contains(generation);
}

}  // namespace cairn::kv::internal
