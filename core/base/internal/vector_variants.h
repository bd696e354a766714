#pragma once
/// Chooses one of the variants of a function that Highway's foreach_target.h compiles, one per set
/// of vector instructions ("target"). Highway's own choice is in its library, which measures the
/// frequency of the processor while it is loaded: 4 ms in every process. So only Highway's headers
/// are used, and this module queries the processor.
///
///   #if HWY_ONCE
///   CAIRN_VECTOR_VARIANTS(Find);                  // in the namespace that contains HWY_NAMESPACE
///   void Call() { CAIRN_BEST_VARIANT(Find)(); }
///   #endif
///
/// Include this header after hwy/highway.h. Threads: any.

#include <hwy/targets.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace cairn::core::internal {

/// The targets (HWY_AVX2, ...) that this processor and its operating system support, without the
/// one that every processor supports.
int64_t SupportedVectorTargets();

/// For tests: only these targets are chosen until the next call; -1 allows all.
void AllowVectorTargets(int64_t targets);

/// The supported targets that are allowed.
int64_t AllowedVectorTargets();

/// The variants in Highway's order: the best is first, and the one for every processor is last.
/// Variants that were not compiled are null.
template <typename Function>
using VectorVariants = std::array<Function, HWY_MAX_DYNAMIC_TARGETS + 1>;

template <typename Function>
Function BestVariant(const VectorVariants<Function>& variants) {
  constexpr int kBestTargetBit = HWY_HIGHEST_TARGET_BIT + 1 - HWY_MAX_DYNAMIC_TARGETS;
  const int64_t allowed = AllowedVectorTargets();
  for (size_t i = 0; i < HWY_MAX_DYNAMIC_TARGETS; ++i) {
    const bool is_allowed = (allowed >> (kBestTargetBit + static_cast<int>(i)) & 1) != 0;
    if (is_allowed && variants[i] != nullptr) return variants[i];
  }
  return variants.back();
}

}  // namespace cairn::core::internal

#define CAIRN_VECTOR_VARIANTS(name)                                                              \
  static constexpr ::cairn::core::internal::VectorVariants<decltype(&HWY_STATIC_DISPATCH(name))> \
      k##name##Variants = {HWY_CHOOSE_TARGET_LIST(name), HWY_CHOOSE_FALLBACK(name)}
#define CAIRN_BEST_VARIANT(name) ::cairn::core::internal::BestVariant(k##name##Variants)
