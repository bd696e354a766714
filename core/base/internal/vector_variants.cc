#include "core/base/internal/vector_variants.h"

#include <atomic>

namespace cairn::core::internal {
namespace {

#if HWY_ARCH_X86

// The instructions that Highway's headers enable for each target. GCC and Clang also check that the
// operating system saves the registers. A macro, because the compilers need literals.
#define CAIRN_HAS(feature) (__builtin_cpu_supports(feature) != 0)

bool HasSse4() { return CAIRN_HAS("x86-64-v2") && CAIRN_HAS("aes") && CAIRN_HAS("pclmul"); }

bool HasAvx3Dl() {
  return CAIRN_HAS("avx512vnni") && CAIRN_HAS("vpclmulqdq") && CAIRN_HAS("avx512vbmi") &&
         CAIRN_HAS("avx512vbmi2") && CAIRN_HAS("vaes") && CAIRN_HAS("avx512vpopcntdq") &&
         CAIRN_HAS("avx512bitalg") && CAIRN_HAS("gfni");
}

int64_t DetectTargets() {
  int64_t targets = 0;
  if (!CAIRN_HAS("ssse3")) return targets;
  targets |= HWY_SSSE3;
  if (!HasSse4()) return targets;
  targets |= HWY_SSE4;
  if (!CAIRN_HAS("x86-64-v3")) return targets;  // AVX2, BMI, FMA, F16C, LZCNT
  targets |= HWY_AVX2;
  if (!CAIRN_HAS("x86-64-v4")) return targets;  // AVX-512 F, BW, CD, DQ, VL
  targets |= HWY_AVX3;
  if (HasAvx3Dl()) targets |= HWY_AVX3_DL;
  return targets;
}

#else

int64_t DetectTargets() { return 0; }

#endif

std::atomic<int64_t> allowed_targets = -1;

}  // namespace

int64_t SupportedVectorTargets() {
  static const int64_t targets = DetectTargets();
  return targets;
}

void AllowVectorTargets(int64_t targets) { allowed_targets = targets; }

int64_t AllowedVectorTargets() {
  return SupportedVectorTargets() & allowed_targets.load(std::memory_order_relaxed);
}

}  // namespace cairn::core::internal
