// The digest kernel: one warp per page.
//
// XXH3 reads a long input in blocks of 1024 bytes: 16 stripes of 64 bytes, whose products are added
// to eight 64-bit sums. After each block the sums are scrambled, which is the only operation that
// depends on the order. Each lane of the warp processes 16 bytes of two stripes, that is, two
// neighbouring sums; the eight lanes that have the same two sums for different stripes add them up
// with shuffles. So a block is read in two accesses of 512 consecutive bytes per warp, and four
// blocks are in flight at a time.

#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/internal/kernels.h"
#include "cuda/internal/xxh3_device.h"
#include "kv/base/digest.h"

namespace cairn::cuda::internal {
// Not unnamed: kernels of an unnamed namespace are named after the path of their source.
inline namespace digest_kernels {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarpLanes = 32;
constexpr int kWarpsPerBlock = 8;
constexpr int kBlocksPerMultiprocessor = 3;  // as many as fit with 80 registers per thread
constexpr int kXxhBlockBytes = 1024;
constexpr int kXxhStripeBytes = 64;
// The grid has up to this many times the blocks that run at a time. Streams of higher priority get
// a multiprocessor only when a block has ended, so short blocks let them wait for about 100
// microseconds at most.
constexpr uint64_t kBlockWaves = 256;
constexpr int kShortBytes = 240;
constexpr int kUnrolled = 4;  // XXH3 blocks in flight

/// Two neighbouring sums.
struct Pair {
  uint64_t a = 0;
  uint64_t b = 0;
};

/// The keys of a lane's sums, by stripe.
struct LaneKeys {
  Pair first;   // for stripe lane / 4
  Pair second;  // for stripe lane / 4 + 8
  Pair last;    // for the stripe that ends the input
  Pair scramble;
};

__device__ __forceinline__ Pair KeyAt(int at) { return {SecretWord(at), SecretWord(at + 8)}; }

__device__ LaneKeys KeysOf(int lane) {
  const int stripe = lane / 4;
  const int column = lane % 4 * 16;
  return {KeyAt(stripe * 8 + column),
          KeyAt((stripe + 8) * 8 + column),
          {Secret64(121 + column), Secret64(129 + column)},
          KeyAt(128 + column)};
}

/// Returns the initial values of a lane's sums.
__device__ Pair FirstSums(int lane) {
  switch (lane % 4) {
    case 0:
      return {kPrime32C, kPrime64A};
    case 1:
      return {kPrime64B, kPrime64C};
    case 2:
      return {kPrime64D, kPrime32B};
    default:
      return {kPrime64E, kPrime32A};
  }
}

/// Loads 16 bytes of a page. Aligned pages bypass the first-level cache, because no byte is read
/// twice.
template <bool kAligned>
__device__ __forceinline__ Pair LoadPair(const unsigned char* bytes) {
  if constexpr (kAligned) {
    const ulonglong2 value = __ldcs(reinterpret_cast<const ulonglong2*>(bytes));
    return {value.x, value.y};
  } else {
    return {Load64(bytes), Load64(bytes + 8)};
  }
}

__device__ __forceinline__ void Accumulate(Pair& sums, const Pair& value, const Pair& key) {
  sums.a += Product(value.a, key.a) + value.b;
  sums.b += Product(value.b, key.b) + value.a;
}

/// Adds up the parts of the lanes that have the same two sums.
__device__ __forceinline__ Pair AddUp(Pair part) {
  for (int distance = 4; distance < kWarpLanes; distance *= 2) {
    part.a += __shfl_xor_sync(kAllLanes, part.a, distance);
    part.b += __shfl_xor_sync(kAllLanes, part.b, distance);
  }
  return part;
}

__device__ __forceinline__ void AddBlock(Pair& sums, const Pair& part, const LaneKeys& keys) {
  const Pair total = AddUp(part);
  sums.a = Scramble(sums.a + total.a, keys.scramble.a);
  sums.b = Scramble(sums.b + total.b, keys.scramble.b);
}

/// Returns, in every lane, the hash of more than 240 bytes, computed by all lanes of a warp.
template <bool kAligned>
__device__ uint64_t HashLong(const unsigned char* page, uint32_t length, int lane,
                             const LaneKeys& keys) {
  const int stripe = lane / 4;
  const int column = lane % 4 * 16;
  const uint32_t blocks = (length - 1) / kXxhBlockBytes;
  Pair sums = FirstSums(lane);
  const unsigned char* at = page + lane * 16;
  uint32_t block = 0;
  for (; block + kUnrolled <= blocks; block += kUnrolled) {
    Pair first[kUnrolled];
    Pair second[kUnrolled];
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      first[i] = LoadPair<kAligned>(at + i * kXxhBlockBytes);
      second[i] = LoadPair<kAligned>(at + i * kXxhBlockBytes + kXxhBlockBytes / 2);
    }
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      Pair part;
      Accumulate(part, first[i], keys.first);
      Accumulate(part, second[i], keys.second);
      AddBlock(sums, part, keys);
    }
    at += kUnrolled * kXxhBlockBytes;
  }
  for (; block < blocks; ++block) {
    Pair part;
    Accumulate(part, LoadPair<kAligned>(at), keys.first);
    Accumulate(part, LoadPair<kAligned>(at + kXxhBlockBytes / 2), keys.second);
    AddBlock(sums, part, keys);
    at += kXxhBlockBytes;
  }
  // The stripes after the last complete block, and the stripe that ends the input, which may
  // overlap them. They are not followed by a scramble.
  const int stripes = static_cast<int>((length - 1 - blocks * kXxhBlockBytes) / kXxhStripeBytes);
  Pair part;
  if (stripe < stripes) Accumulate(part, LoadPair<kAligned>(at), keys.first);
  if (stripe + 8 < stripes) {
    Accumulate(part, LoadPair<kAligned>(at + kXxhBlockBytes / 2), keys.second);
  }
  if (stripe == 0) {
    Accumulate(part, LoadPair<false>(page + length - kXxhStripeBytes + column), keys.last);
  }
  const Pair total = AddUp(part);
  const int secret = 11 + column;
  uint64_t hash = MultiplyFold((sums.a + total.a) ^ Secret64(secret),
                               (sums.b + total.b) ^ Secret64(secret + 8));
  hash += __shfl_xor_sync(kAllLanes, hash, 1);
  hash += __shfl_xor_sync(kAllLanes, hash, 2);
  return Avalanche(hash + length * kPrime64A);
}

/// Returns the index of the job that contains a page. All lanes search together: each step probes
/// 32 positions.
__device__ uint32_t FindJob(const PageJob* jobs, uint32_t count, uint64_t page, int lane) {
  uint32_t low = 0;
  uint32_t high = count;
  while (high - low > 1) {
    const uint32_t step = (high - low + kWarpLanes - 1) / kWarpLanes;
    const uint32_t probe = low + static_cast<uint32_t>(lane) * step;
    const bool before = probe < high && jobs[probe].first_page <= page;
    const unsigned hits = __ballot_sync(kAllLanes, before);  // lane 0 always hits
    low += static_cast<uint32_t>(__popc(hits) - 1) * step;
    high = min(low + step, high);
  }
  return low;
}

/// One page of one job.
struct Page {
  const unsigned char* data;
  uint32_t length;
  uint64_t page_digest;
  uint64_t base_page;
};
__device__ Page PageOf(const PageJob& job, uint64_t page) {
  const uint64_t in_job = page - job.first_page;
  const uint64_t begin = in_job * kv::kPageBytes;
  const uint64_t left = job.length_bytes - begin;
  return {job.data + begin, static_cast<uint32_t>(left < kv::kPageBytes ? left : kv::kPageBytes),
          job.first_page_digest + in_job,
          job.base_page == UINT64_MAX ? UINT64_MAX : job.base_page + in_job};
}

__global__ void __launch_bounds__(kWarpsPerBlock* kWarpLanes, kBlocksPerMultiprocessor)
    DigestPages(const DigestLaunch launch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const LaneKeys keys = KeysOf(lane);
  const uint64_t warps = static_cast<uint64_t>(gridDim.x) * kWarpsPerBlock;
  for (uint64_t number =
           static_cast<uint64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpLanes;
       number < launch.page_count; number += warps) {
    const Page page =
        PageOf(launch.jobs[FindJob(launch.jobs, launch.job_count, number, lane)], number);
    uint64_t hash = 0;
    if (page.length <= kShortBytes) {
      if (lane == 0) hash = HashShort(page.data, page.length);
    } else if (reinterpret_cast<uintptr_t>(page.data) % 16 == 0) {
      hash = HashLong<true>(page.data, page.length, lane, keys);
    } else {
      hash = HashLong<false>(page.data, page.length, lane, keys);
    }
    if (lane != 0) continue;
    launch.page_digests[page.page_digest] = hash;
    if (page.base_page == UINT64_MAX || launch.base[page.base_page] != hash) {
      atomicOr(launch.changed + page.page_digest / 32, 1u << page.page_digest % 32);
    }
  }
}

__global__ void __launch_bounds__(kWarpsPerBlock* kWarpLanes, kBlocksPerMultiprocessor)
    ReadPages(const DigestLaunch launch, uint64_t* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const uint64_t warps = static_cast<uint64_t>(gridDim.x) * kWarpsPerBlock;
  for (uint64_t number =
           static_cast<uint64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpLanes;
       number < launch.page_count; number += warps) {
    const Page page =
        PageOf(launch.jobs[FindJob(launch.jobs, launch.job_count, number, lane)], number);
    Pair sum;
    for (uint32_t at = lane * 16; at + 16 <= page.length; at += kWarpLanes * 16 * kUnrolled * 2) {
#pragma unroll
      for (int i = 0; i < kUnrolled * 2; ++i) {
        const uint32_t begin = at + i * kWarpLanes * 16;
        if (begin + 16 > page.length) break;
        const Pair value = LoadPair<true>(page.data + begin);
        sum.a ^= value.a;
        sum.b ^= value.b;
      }
    }
    for (int distance = 1; distance < kWarpLanes; distance *= 2) {
      sum.a ^= __shfl_xor_sync(kAllLanes, sum.a, distance);
      sum.b ^= __shfl_xor_sync(kAllLanes, sum.b, distance);
    }
    if (lane == 0) sums[page.page_digest] = sum.a ^ sum.b;
  }
}

template <typename Kernel, typename... Arguments>
cudaError_t LaunchOverPages(uint64_t page_count, int multiprocessors, cudaStream_t stream,
                            Kernel kernel, Arguments... arguments) {
  if (page_count == 0) return cudaSuccess;
  const uint64_t wanted = (page_count + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const uint64_t most =
      static_cast<uint64_t>(multiprocessors) * kBlocksPerMultiprocessor * kBlockWaves;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(wanted, most)));
  config.blockDim = dim3(kWarpsPerBlock * kWarpLanes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace digest_kernels

cudaError_t LaunchDigest(const DigestLaunch& launch, int multiprocessors, cudaStream_t stream) {
  return LaunchOverPages(launch.page_count, multiprocessors, stream, DigestPages, launch);
}

cudaError_t LaunchRead(const DigestLaunch& launch, uint64_t* sums, int multiprocessors,
                       cudaStream_t stream) {
  return LaunchOverPages(launch.page_count, multiprocessors, stream, ReadPages, launch, sums);
}

}  // namespace cairn::cuda::internal
