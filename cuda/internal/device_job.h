#pragma once
/// What kernels are told: plain structs that lie in device memory or are passed by value.

#include <cstdint>

namespace cairn::cuda::internal {

/// A payload that lies in one piece, of which each 64 KiB page is digested. Pages of several jobs
/// are numbered one job after the other.
struct PageJob {
  const unsigned char* data = nullptr;
  uint64_t length_bytes = 0;
  uint64_t first_page = 0;          // among all pages of the launch
  uint64_t first_page_digest = 0;          // where its digests go
  uint64_t base_page = UINT64_MAX;  // where its digests stand in the base's; all ones: nowhere
};

/// A run of bytes to be copied within the device, or (source null) set to zero.
struct CopyJob {
  const unsigned char* source = nullptr;
  unsigned char* target = nullptr;
  uint64_t length_bytes = 0;
};

/// A strided tensor in units of 1 to 16 bytes. Dimensions that lie one behind another are one.
struct StridedShape {
  static constexpr int kMaxDims = 16;
  int dims = 0;
  int unit_bytes = 1;             // a power of two; all addresses are multiples of it
  uint64_t sizes[kMaxDims] = {};  // units in the last dimension, outermost first
  uint64_t steps_bytes[kMaxDims] = {};
};

}  // namespace cairn::cuda::internal
