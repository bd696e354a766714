#pragma once
/// Page digests on the device: XXH3-64 of every 64 KiB page, bit-equal to kv::PageDigest.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/internal/device_job.h"

namespace cairn::cuda::internal {

/// All pointers refer to device memory that must stay valid until the work is done.
struct DigestLaunch {
  const PageJob* jobs = nullptr;  // in ascending order of first_page; none is empty
  uint32_t job_count = 0;
  uint64_t page_count = 0;           // sum over all jobs
  const uint64_t* base = nullptr;    // page digests to compare with; null if no job has a base
  uint64_t* page_digests = nullptr;  // output: one per page
  uint32_t* changed = nullptr;       // output: bit p % 32 of word p / 32 is set if page p changed
};

/// Enqueues the digests of all pages of `launch`. `multiprocessors` is the number that the device
/// has; it bounds the grid.
cudaError_t LaunchDigest(const DigestLaunch& launch, int multiprocessors, cudaStream_t stream);

/// Enqueues a kernel that reads the same bytes and does as little as possible with them: the upper
/// limit that the speed of the digest is compared with. Writes one word per page to `sums`.
cudaError_t LaunchRead(const DigestLaunch& launch, uint64_t* sums, int multiprocessors,
                       cudaStream_t stream);

}  // namespace cairn::cuda::internal
