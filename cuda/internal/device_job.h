#pragma once
/// The work that kernels are given: plain structs in device memory or passed by value.

#include <cstdint>

namespace cairn::cuda::internal {

/// A contiguous payload whose 64 KiB pages are to be digested. The pages of all jobs of a launch
/// are numbered consecutively, job after job.
struct PageJob {
  const unsigned char* data = nullptr;
  uint64_t length_bytes = 0;
  uint64_t first_page = 0;          // number of the first page within the launch
  uint64_t first_page_digest = 0;   // index of its digest in the output
  uint64_t base_page = UINT64_MAX;  // index of its digest in the base; UINT64_MAX: no base
};

/// Bytes to copy within the device, or to set to zero if `source` is null.
struct CopyJob {
  const unsigned char* source = nullptr;
  unsigned char* target = nullptr;
  uint64_t length_bytes = 0;
};

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

}  // namespace cairn::cuda::internal
