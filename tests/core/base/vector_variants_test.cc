// The best variant is chosen, and the processor is judged as Highway's library judges it.

#include "core/base/internal/vector_variants.h"

#include <gtest/gtest.h>

#include <bit>

#include "tests/support/scoped_vector_target.h"

namespace cairn::core::internal {
namespace {

using Variants = VectorVariants<int64_t (*)()>;

constexpr int64_t kTargets = HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL;

template <int64_t target>
int64_t Target() {
  return target;
}

TEST(VectorVariantsTest, TheProcessorHasTheTargetsThatHighwayFinds) {
  EXPECT_EQ(SupportedVectorTargets(), hwy::SupportedTargets() & kTargets);
}

TEST(VectorVariantsTest, SkipsVariantsThatWereNotCompiled) {
  Variants variants{};
  variants.back() = &Target<0>;
  EXPECT_EQ(BestVariant(variants)(), 0);
}

#if HWY_ARCH_X86  // the array has places for the targets of one architecture

size_t IndexOf(int64_t target) {
  const int bit = std::countr_zero(static_cast<uint64_t>(target));
  return static_cast<size_t>(bit - (HWY_HIGHEST_TARGET_BIT + 1 - HWY_MAX_DYNAMIC_TARGETS));
}

Variants AllVariants() {
  Variants variants{};
  variants[IndexOf(HWY_AVX3_DL)] = &Target<HWY_AVX3_DL>;
  variants[IndexOf(HWY_AVX3)] = &Target<HWY_AVX3>;
  variants[IndexOf(HWY_AVX2)] = &Target<HWY_AVX2>;
  variants[IndexOf(HWY_SSE4)] = &Target<HWY_SSE4>;
  variants[IndexOf(HWY_SSSE3)] = &Target<HWY_SSSE3>;
  variants.back() = &Target<0>;
  return variants;
}

TEST(VectorVariantsTest, ChoosesTheBestTargetThatTheProcessorHas) {
  // A better target has a lower bit.
  const int64_t targets = SupportedVectorTargets();
  EXPECT_EQ(BestVariant(AllVariants())(), targets & -targets);
}

TEST(VectorVariantsTest, ChoosesEachTargetThatIsAllowed) {
  for (const int64_t target : testing::VectorTargets()) {
    const testing::ScopedVectorTarget scope(target);
    EXPECT_EQ(BestVariant(AllVariants())(), target);
  }
}

TEST(VectorVariantsTest, NeverChoosesATargetThatTheProcessorLacks) {
  const testing::ScopedVectorTarget scope(kTargets & ~SupportedVectorTargets());
  EXPECT_EQ(BestVariant(AllVariants())(), 0);
}

#endif

}  // namespace
}  // namespace cairn::core::internal
