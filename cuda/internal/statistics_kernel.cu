// The kernel that sums up elements: one warp per page, 16 bytes per lane at a time.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/internal/lane_words.h"
#include "cuda/internal/statistics_kernel.h"

namespace cairn::cuda::internal {
namespace {

using schema::DType;

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarpLanes = 32;
constexpr int kWarpsPerBlock = 8;
constexpr int kBlocksPerMultiprocessor = 4;
// As in the kernel that digests: short blocks let streams of higher priority begin soon.
constexpr uint32_t kBlockWaves = 256;
// A page has at most 2^17 numbers, so the sum of numbers that are scaled by this is finite.
constexpr double kScale = 1.0 / (1 << 17);

__device__ __forceinline__ float AsFloat(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
__device__ __forceinline__ double AsDouble(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
__device__ __forceinline__ double Infinity() { return AsDouble(uint64_t{0x7ff} << 52); }
__device__ __forceinline__ double Nan() { return AsDouble(uint64_t{0xfff} << 51); }

/// Returns the finite value of a float with these numbers of bits; exponent 0 is subnormal.
template <int kExponentBits, int kMantissaBits, int kBias>
__device__ __forceinline__ double SmallFloat(uint32_t bits) {
  const uint32_t mantissa = bits & ((1u << kMantissaBits) - 1);
  const uint32_t exponent = bits >> kMantissaBits & ((1u << kExponentBits) - 1);
  const float magnitude =
      exponent == 0 ? static_cast<float>(mantissa) * AsFloat((128u - kBias - kMantissaBits) << 23)
                    : AsFloat((exponent + 127 - kBias) << 23 | mantissa << (23 - kMantissaBits));
  return (bits >> (kExponentBits + kMantissaBits) & 1) != 0 ? -magnitude : magnitude;
}
/// Returns the value of a float whose largest exponent means infinity or NaN.
template <int kExponentBits, int kMantissaBits, int kBias>
__device__ __forceinline__ double IeeeFloat(uint32_t bits) {
  constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;
  constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  const uint32_t magnitude = bits & (kSign - 1);
  if (magnitude > kInfinity) return Nan();
  if (magnitude == kInfinity) return (bits & kSign) != 0 ? -Infinity() : Infinity();
  return SmallFloat<kExponentBits, kMantissaBits, kBias>(bits);
}
__device__ __forceinline__ double Half(uint32_t bits) { return IeeeFloat<5, 10, 15>(bits); }

/// Return the magnitude of a complex number; hypot would hide the NaN of (inf, nan).
__device__ __forceinline__ double Magnitude(float real, float imaginary) {
  return real != real || imaginary != imaginary ? Nan() : hypotf(real, imaginary);
}
__device__ __forceinline__ double Magnitude(double real, double imaginary) {
  return real != real || imaginary != imaginary ? Nan() : hypot(real, imaginary);
}

// The element types: how many numbers there are in 16 bytes, and the i-th of them.
template <typename T>
struct Integers {
  static constexpr uint32_t kNumbers = kLaneBytes / sizeof(T);
  __device__ static double At(const Words& words, uint32_t i) {
    return static_cast<double>(ElementOf<T>(words, i));
  }
};
template <typename Bits, double (*kConvert)(uint32_t)>
struct Converted {
  static constexpr uint32_t kNumbers = kLaneBytes / sizeof(Bits);
  __device__ static double At(const Words& words, uint32_t i) {
    return kConvert(ElementOf<Bits>(words, i));
  }
};
__device__ __forceinline__ double Bool(uint32_t bits) { return bits != 0 ? 1 : 0; }
__device__ __forceinline__ double BFloat16(uint32_t bits) { return AsFloat(bits << 16); }
__device__ __forceinline__ double Float32(uint32_t bits) { return AsFloat(bits); }
__device__ __forceinline__ double Float8E4M3FN(uint32_t bits) {
  return (bits & 0x7f) == 0x7f ? Nan() : SmallFloat<4, 3, 7>(bits);
}
__device__ __forceinline__ double Float8E4M3FNUZ(uint32_t bits) {
  return bits == 0x80 ? Nan() : SmallFloat<4, 3, 8>(bits);
}
__device__ __forceinline__ double Float8E5M2FNUZ(uint32_t bits) {
  return bits == 0x80 ? Nan() : SmallFloat<5, 2, 16>(bits);
}
__device__ __forceinline__ double Float8E8M0FNU(uint32_t bits) {
  return bits == 0xff ? Nan() : AsDouble(uint64_t{bits + 1023 - 127} << 52);
}
struct Float64s {
  static constexpr uint32_t kNumbers = 2;
  __device__ static double At(const Words& words, uint32_t i) {
    return AsDouble(i == 0 ? words.low : words.high);
  }
};
struct Float4Pairs {
  static constexpr uint32_t kNumbers = 32;
  __device__ static double At(const Words& words, uint32_t i) {
    return SmallFloat<2, 1, 1>(ElementOf<unsigned char>(words, i / 2) >> (i % 2 * 4) & 0xf);
  }
};
struct Complex32s {
  static constexpr uint32_t kNumbers = 4;
  __device__ static double At(const Words& words, uint32_t i) {
    const auto bits = ElementOf<uint32_t>(words, i);
    return Magnitude(static_cast<float>(Half(bits & 0xffff)), static_cast<float>(Half(bits >> 16)));
  }
};
struct Complex64s {
  static constexpr uint32_t kNumbers = 2;
  __device__ static double At(const Words& words, uint32_t i) {
    const auto bits = ElementOf<uint64_t>(words, i);
    return Magnitude(AsFloat(static_cast<uint32_t>(bits)), AsFloat(bits >> 32));
  }
};
struct Complex128s {
  static constexpr uint32_t kNumbers = 1;
  __device__ static double At(const Words& words, uint32_t) {
    return Magnitude(AsDouble(words.low), AsDouble(words.high));
  }
};

/// What a lane has seen of a page.
struct LaneSummary {
  double min = Infinity();
  double max = -Infinity();
  double sum = 0;
  double scaled_sum = 0;  // in case `sum` is not finite
  uint32_t finite = 0;
  uint32_t zeros = 0;
  uint32_t nans = 0;
  uint32_t infs = 0;

  __device__ __forceinline__ void Add(double number) {
    zeros += number == 0;
    if (number != number) {
      ++nans;
      return;
    }
    if (number < min) min = number;
    if (number > max) max = number;
    if (number == Infinity() || number == -Infinity()) {
      ++infs;
      return;
    }
    ++finite;
    sum += number;
    scaled_sum += number * kScale;
  }
};

/// Combines the summaries of all lanes. The result is in every lane.
__device__ LaneSummary Combine(LaneSummary part) {
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const double min = __shfl_xor_sync(kAllLanes, part.min, distance);
    const double max = __shfl_xor_sync(kAllLanes, part.max, distance);
    if (min < part.min) part.min = min;
    if (max > part.max) part.max = max;
    part.sum += __shfl_xor_sync(kAllLanes, part.sum, distance);
    part.scaled_sum += __shfl_xor_sync(kAllLanes, part.scaled_sum, distance);
    part.finite += __shfl_xor_sync(kAllLanes, part.finite, distance);
    part.zeros += __shfl_xor_sync(kAllLanes, part.zeros, distance);
    part.nans += __shfl_xor_sync(kAllLanes, part.nans, distance);
    part.infs += __shfl_xor_sync(kAllLanes, part.infs, distance);
  }
  return part;
}

template <typename Elements, bool kAligned>
__device__ __forceinline__ LaneSummary SumUp(const SummarizeJob& job, int lane) {
  LaneSummary summary;
  for (uint32_t at = static_cast<uint32_t>(lane) * kLaneBytes; at < job.length_bytes;
       at += kWarpLanes * kLaneBytes) {
    const uint32_t bytes = min(kLaneBytes, job.length_bytes - at);
    const Words words = LoadWords<kAligned>(job.page + at, bytes);
    const uint32_t numbers = bytes * Elements::kNumbers / kLaneBytes;
    for (uint32_t i = 0; i < numbers; ++i) summary.Add(Elements::At(words, i));
  }
  return summary;
}

template <typename Elements>
__device__ LaneSummary SumUp(const SummarizeJob& job, int lane) {
  const bool aligned = reinterpret_cast<uintptr_t>(job.page) % kLaneBytes == 0;
  return aligned ? SumUp<Elements, true>(job, lane) : SumUp<Elements, false>(job, lane);
}

__device__ LaneSummary SumUpFloats(const SummarizeJob& job, int lane) {
  switch (job.dtype) {
    case DType::kBFloat16:
      return SumUp<Converted<uint16_t, BFloat16>>(job, lane);
    case DType::kFloat16:
      return SumUp<Converted<uint16_t, Half>>(job, lane);
    case DType::kFloat32:
      return SumUp<Converted<uint32_t, Float32>>(job, lane);
    case DType::kFloat64:
      return SumUp<Float64s>(job, lane);
    case DType::kFloat8E4M3FN:
      return SumUp<Converted<unsigned char, Float8E4M3FN>>(job, lane);
    case DType::kFloat8E4M3FNUZ:
      return SumUp<Converted<unsigned char, Float8E4M3FNUZ>>(job, lane);
    case DType::kFloat8E5M2:
      return SumUp<Converted<unsigned char, IeeeFloat<5, 2, 15>>>(job, lane);
    case DType::kFloat8E5M2FNUZ:
      return SumUp<Converted<unsigned char, Float8E5M2FNUZ>>(job, lane);
    case DType::kFloat8E8M0FNU:
      return SumUp<Converted<unsigned char, Float8E8M0FNU>>(job, lane);
    case DType::kFloat4E2M1FNx2:
      return SumUp<Float4Pairs>(job, lane);
    case DType::kComplex32:
      return SumUp<Complex32s>(job, lane);
    case DType::kComplex64:
      return SumUp<Complex64s>(job, lane);
    default:
      return SumUp<Complex128s>(job, lane);
  }
}

__device__ LaneSummary SumUp(const SummarizeJob& job, int lane) {
  switch (job.dtype) {
    case DType::kBool:
      return SumUp<Converted<unsigned char, Bool>>(job, lane);
    case DType::kInt8:
    case DType::kInt1:
    case DType::kInt2:
    case DType::kInt3:
    case DType::kInt4:
    case DType::kInt5:
    case DType::kInt6:
    case DType::kInt7:
      return SumUp<Integers<signed char>>(job, lane);
    case DType::kUInt8:
    case DType::kUInt1:
    case DType::kUInt2:
    case DType::kUInt3:
    case DType::kUInt4:
    case DType::kUInt5:
    case DType::kUInt6:
    case DType::kUInt7:
    case DType::kBits8:
    case DType::kBits1x8:
    case DType::kBits2x4:
    case DType::kBits4x2:
      return SumUp<Integers<unsigned char>>(job, lane);
    case DType::kInt16:
      return SumUp<Integers<int16_t>>(job, lane);
    case DType::kUInt16:
    case DType::kBits16:
      return SumUp<Integers<uint16_t>>(job, lane);
    case DType::kInt32:
      return SumUp<Integers<int32_t>>(job, lane);
    case DType::kUInt32:
      return SumUp<Integers<uint32_t>>(job, lane);
    case DType::kInt64:
      return SumUp<Integers<int64_t>>(job, lane);
    case DType::kUInt64:
      return SumUp<Integers<uint64_t>>(job, lane);
    case DType::kUnknown:
      return {};
    default:
      return SumUpFloats(job, lane);
  }
}

__global__ void __launch_bounds__(kWarpsPerBlock* kWarpLanes, kBlocksPerMultiprocessor)
    SummarizePages(const SummarizeLaunch launch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const uint32_t warps = gridDim.x * kWarpsPerBlock;
  for (uint32_t number = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarpLanes;
       number < launch.job_count; number += warps) {
    const LaneSummary all = Combine(SumUp(launch.jobs[number], lane));
    if (lane != 0) continue;
    const bool is_finite = all.sum < Infinity() && all.sum > -Infinity();
    const double count = all.finite;
    double mean = 0;
    if (all.finite > 0) mean = is_finite ? all.sum / count : all.scaled_sum / count / kScale;
    launch.summaries[number] = {all.min, all.max, mean, all.finite, all.zeros, all.nans, all.infs};
  }
}

}  // namespace

cudaError_t LaunchSummarize(const SummarizeLaunch& launch, int multiprocessors,
                            cudaStream_t stream) {
  if (launch.job_count == 0) return cudaSuccess;
  const uint32_t wanted = (launch.job_count + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const uint32_t most =
      static_cast<uint32_t>(multiprocessors) * kBlocksPerMultiprocessor * kBlockWaves;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(wanted, most));
  config.blockDim = dim3(kWarpsPerBlock * kWarpLanes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, SummarizePages, launch);
}

}  // namespace cairn::cuda::internal
