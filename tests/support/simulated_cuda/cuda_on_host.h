#pragma once
/// The language of .cu files for g++. Included before such a file (`-x c++ -include`), it defines
/// the keywords, the intrinsics and the launch that our kernels use, on the simulated runtime. A
/// kernel that uses anything else does not compile. README.md in this folder states the
/// differences.

#include <cuda_runtime.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/support/simulated_cuda/kernel_block.h"

#undef __constant__
#define __constant__
#define __launch_bounds__(...)

// CUDA's template of that name passes addresses of arguments without their sizes.
#define cudaLaunchKernelEx cairnSimulatedLaunchKernelEx

/// Replaces the template cudaLaunchKernelEx of CUDA.
template <typename... Parameters, typename... Arguments>
cudaError_t cairnSimulatedLaunchKernelEx(const cudaLaunchConfig_t* config,
                                         void (*kernel)(Parameters...), Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<std::decay_t<Parameters>> && ...),
                "arguments of kernels are copied as bytes");
  return cairn::simulated_cuda::LaunchKernel(
      *config, [kernel, values = std::tuple<std::decay_t<Parameters>...>(std::forward<Arguments>(
                            arguments)...)] { std::apply(kernel, values); });
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return cairn::simulated_cuda::WarpBallot(mask, predicate != 0);
}

// Exchanges values of 4 and 8 bytes among the lanes of a warp.
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  namespace sim = cairn::simulated_cuda;
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = sim::WarpShuffle(mask, bits, sim::ThisLane() ^ static_cast<unsigned>(lanes));
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A load with a cache hint, which has no effect here.
template <typename T>
T __ldcs(const T* address) {
  return *address;
}

inline unsigned atomicOr(unsigned* address, unsigned value) {
  return std::atomic_ref<unsigned>(*address).fetch_or(value, std::memory_order_relaxed);
}

template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
inline int __popc(unsigned value) { return std::popcount(value); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
