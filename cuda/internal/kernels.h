#pragma once
/// The kernels, and the work that they are given: plain structs in device memory or passed by
/// value. All pointers refer to device memory that must stay valid until the work is done. The
/// `multiprocessors` of the device bound the grids.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::cuda::internal {

/// Bytes to copy within the device, or to set to zero if `source` is null.
struct CopyJob {
  const unsigned char* source = nullptr;
  unsigned char* target = nullptr;
  uint64_t length_bytes = 0;
};

/// Enqueues `count` copies that do not overlap. Fastest if no job is longer than about 8 KiB.
cudaError_t LaunchCopies(const CopyJob* jobs, uint32_t count, int multiprocessors,
                         cudaStream_t stream);

/// A strided tensor in units of 1 to 16 bytes. Dimensions that are contiguous with each other are
/// joined into one.
struct StridedShape {
  static constexpr int kMaxDims = 16;
  int dims = 0;
  int unit_bytes = 1;             // a power of two; all addresses are multiples of it
  uint64_t sizes[kMaxDims] = {};  // outermost first; the last dimension is counted in units
  uint64_t steps_bytes[kMaxDims] = {};
};

/// A range of the row-major form of a strided tensor, and packed memory of the same length.
struct StridedCopyJob {
  StridedShape shape;
  unsigned char* tensor = nullptr;  // element 0
  uint64_t begin_units = 0;
  uint64_t unit_count = 0;
  unsigned char* packed = nullptr;  // aligned to the unit
  bool unpack = false;              // true: from `packed` to the tensor; false: the reverse
};

/// Enqueues a copy between a strided tensor and packed memory. cudaErrorInvalidValue: the unit of
/// the shape is not 1, 2, 4, 8 or 16 bytes.
cudaError_t LaunchStrided(const StridedCopyJob& job, int multiprocessors, cudaStream_t stream);

/// A contiguous payload whose 64 KiB pages are to be digested. The pages of all jobs of a launch
/// are numbered consecutively, job after job.
struct PageJob {
  const unsigned char* data = nullptr;
  uint64_t length_bytes = 0;
  uint64_t first_page = 0;          // number of the first page within the launch
  uint64_t first_page_digest = 0;   // index of its digest in the output
  uint64_t base_page = UINT64_MAX;  // index of its digest in the base; UINT64_MAX: no base
};

struct DigestLaunch {
  const PageJob* jobs = nullptr;  // in ascending order of first_page; none is empty
  uint32_t job_count = 0;
  uint64_t page_count = 0;           // sum over all jobs
  const uint64_t* base = nullptr;    // page digests to compare with; null if no job has a base
  uint64_t* page_digests = nullptr;  // output: one per page
  uint32_t* changed = nullptr;       // output: bit p % 32 of word p / 32 is set if page p changed
};

/// Enqueues the digests of all pages of `launch`: XXH3-64, bit-equal to kv::PageDigest.
cudaError_t LaunchDigest(const DigestLaunch& launch, int multiprocessors, cudaStream_t stream);

/// Enqueues a kernel that reads the same bytes and does as little as possible with them: the upper
/// limit that the speed of the digest is compared with. Writes one word per page to `sums`.
cudaError_t LaunchRead(const DigestLaunch& launch, uint64_t* sums, int multiprocessors,
                       cudaStream_t stream);

}  // namespace cairn::cuda::internal
