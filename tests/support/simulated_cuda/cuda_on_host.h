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

// One block runs at a time, and its threads share a thread of the system. Shared memory is not
// cleared between blocks, as on a device.
#undef __shared__
#define __shared__ static thread_local
#undef __constant__
#define __constant__ static
#define __launch_bounds__(...)
#define __builtin_assume(condition) ((void)0)

inline constexpr int warpSize = 32;

// CUDA's template of that name passes addresses of arguments without their sizes.
#define cudaLaunchKernelEx cairnSimulatedLaunchKernelEx

/// Replaces the template cudaLaunchKernelEx of CUDA.
template <typename... Parameters, typename... Arguments>
cudaError_t cairnSimulatedLaunchKernelEx(const cudaLaunchConfig_t* config,
                                         void (*kernel)(Parameters...), Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<std::decay_t<Parameters>> && ...),
                "arguments of kernels are copied as bytes");
  return cairn::simulated_cuda::LaunchKernel(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, values = std::tuple<std::decay_t<Parameters>...>(
                   std::forward<Arguments>(arguments)...)] { std::apply(kernel, values); });
}

// Barriers.
inline void __syncthreads() { cairn::simulated_cuda::BlockBarrier(false); }
inline int __syncthreads_count(int predicate) {
  return cairn::simulated_cuda::BlockBarrier(predicate != 0);
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) { cairn::simulated_cuda::WarpSync(mask); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
[[noreturn]] inline void __trap() { cairn::simulated_cuda::FailKernel(cudaErrorLaunchFailure); }

// Votes.
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return cairn::simulated_cuda::WarpBallot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}

// Shuffles of 4 and 8 bytes. `width` divides a warp into parts of that many lanes. A lane whose
// source would be outside its part keeps its value.
namespace cairn::simulated_cuda::internal {

template <typename T>
T ShuffleFrom(unsigned mask, T value, unsigned source) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = WarpShuffle(mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned FirstLane(int width) { return ThisLane() & ~(static_cast<unsigned>(width) - 1); }

}  // namespace cairn::simulated_cuda::internal

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  namespace sim = cairn::simulated_cuda;
  const unsigned within = static_cast<unsigned>(lane) & (static_cast<unsigned>(width) - 1);
  return sim::internal::ShuffleFrom(mask, value, sim::internal::FirstLane(width) + within);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  namespace sim = cairn::simulated_cuda;
  const unsigned self = sim::ThisLane();
  const unsigned other = self ^ static_cast<unsigned>(lanes);
  // A part may read from earlier parts, but not from later ones.
  const unsigned end = sim::internal::FirstLane(width) + static_cast<unsigned>(width);
  return sim::internal::ShuffleFrom(mask, value, other < end ? other : self);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  namespace sim = cairn::simulated_cuda;
  const unsigned self = sim::ThisLane();
  const unsigned end = sim::internal::FirstLane(width) + static_cast<unsigned>(width);
  return sim::internal::ShuffleFrom(mask, value, self + lanes < end ? self + lanes : self);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  namespace sim = cairn::simulated_cuda;
  const unsigned self = sim::ThisLane();
  const bool inside = self >= sim::internal::FirstLane(width) + lanes;
  return sim::internal::ShuffleFrom(mask, value, inside ? self - lanes : self);
}

// Loads and stores with cache hints, which have no effect here.
template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
T __ldca(const T* address) {
  return *address;
}
template <typename T>
T __ldlu(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stwt(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// Atomics, for the types for which CUDA has them; uint64_t is not one of these.
#define CAIRN_SIMULATED_ATOMICS(T)                                                             \
  inline T atomicAdd(T* address, T value) {                                                    \
    return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);           \
  }                                                                                            \
  inline T atomicExch(T* address, T value) {                                                   \
    return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);            \
  }                                                                                            \
  inline T atomicOr(T* address, T value) {                                                     \
    return std::atomic_ref<T>(*address).fetch_or(value, std::memory_order_relaxed);            \
  }                                                                                            \
  inline T atomicAnd(T* address, T value) {                                                    \
    return std::atomic_ref<T>(*address).fetch_and(value, std::memory_order_relaxed);           \
  }                                                                                            \
  inline T atomicXor(T* address, T value) {                                                    \
    return std::atomic_ref<T>(*address).fetch_xor(value, std::memory_order_relaxed);           \
  }                                                                                            \
  inline T atomicCAS(T* address, T expected, T value) {                                        \
    std::atomic_ref<T>(*address).compare_exchange_strong(expected, value,                      \
                                                         std::memory_order_relaxed);           \
    return expected;                                                                           \
  }                                                                                            \
  inline T atomicMax(T* address, T value) {                                                    \
    T seen = std::atomic_ref<T>(*address).load(std::memory_order_relaxed);                     \
    while (seen < value && !std::atomic_ref<T>(*address).compare_exchange_weak(seen, value)) { \
    }                                                                                          \
    return seen;                                                                               \
  }                                                                                            \
  inline T atomicMin(T* address, T value) {                                                    \
    T seen = std::atomic_ref<T>(*address).load(std::memory_order_relaxed);                     \
    while (value < seen && !std::atomic_ref<T>(*address).compare_exchange_weak(seen, value)) { \
    }                                                                                          \
    return seen;                                                                               \
  }
CAIRN_SIMULATED_ATOMICS(int)
CAIRN_SIMULATED_ATOMICS(unsigned)
CAIRN_SIMULATED_ATOMICS(unsigned long long)
#undef CAIRN_SIMULATED_ATOMICS

// Integers.
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __popcll(unsigned long long value) { return std::popcount(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __clzll(long long value) {
  return std::countl_zero(static_cast<unsigned long long>(value));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7)) & 0xff);
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;  // the sign, repeated
    result |= byte << (8 * i);
  }
  return result;
}
template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
