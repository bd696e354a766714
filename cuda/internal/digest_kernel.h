#pragma once
/// Page digests on the device: XXH3-64 of every 64 KiB page, bit-equal to kv::PageDigest.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/internal/device_job.h"

namespace cairn::cuda::internal {

/// All pointers are device memory that stays until the work is done.
struct DigestLaunch {
  const PageJob* jobs = nullptr;  // by first_page; none is empty
  uint32_t job_count = 0;
  uint64_t page_count = 0;         // of all jobs
  const uint64_t* base = nullptr;  // page digests to compare with; may be null if no job has any
  uint64_t* page_digests = nullptr;      // written: one a page
  uint32_t* changed = nullptr;     // bits that are set: bit p % 32 of word p / 32
};
/// Enqueues. `multiprocessors` of the device bound the grid.
cudaError_t LaunchDigest(const DigestLaunch& launch, int multiprocessors, cudaStream_t stream);

/// Reads the same bytes and does as little as it can with them: the limit that the digest is
/// measured against. `sums` gets a word for each page.
cudaError_t LaunchRead(const DigestLaunch& launch, uint64_t* sums, int multiprocessors,
                       cudaStream_t stream);

}  // namespace cairn::cuda::internal
