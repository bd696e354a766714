#pragma once
/// Chooses one set of vector instructions for the functions that have several variants.

#include <bit>
#include <cstdint>
#include <vector>

#include "core/base/internal/vector_variants.h"

namespace cairn::testing {

/// Until the end of the scope, only this target (HWY_AVX2, ...) is chosen; 0: the variant for every
/// processor.
class ScopedVectorTarget {
 public:
  explicit ScopedVectorTarget(int64_t target) { core::internal::AllowVectorTargets(target); }
  ~ScopedVectorTarget() { core::internal::AllowVectorTargets(-1); }
  ScopedVectorTarget(const ScopedVectorTarget&) = delete;
  ScopedVectorTarget& operator=(const ScopedVectorTarget&) = delete;
};

/// Every target of this processor, and 0.
inline std::vector<int64_t> VectorTargets() {
  std::vector<int64_t> targets = {0};
  for (int64_t left = core::internal::SupportedVectorTargets(); left != 0; left &= left - 1) {
    targets.push_back(int64_t{1} << std::countr_zero(static_cast<uint64_t>(left)));
  }
  return targets;
}

}  // namespace cairn::testing
