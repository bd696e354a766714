#pragma once
/// Compares pages in device memory with earlier versions, and keeps the lists of what differs.

#include <cstdint>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/device_job.h"
#include "cuda/internal/kernel_tables.h"
#include "cuda/internal/stream.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// Comparisons on one stream.
///
/// Device memory: 32 MiB for lists. Page-locked host memory: 28 KiB. Allocated when it is first
/// needed, and kept until the destructor.
///
/// Ownership: borrows the heap and the stream, which must outlive it; `stream` must be valid at the
/// first call. Threads: one at a time. The device of the heap must be current in every call.
class PageComparer {
 public:
  PageComparer(const DeviceHeap* heap, const Stream* stream) : heap_(heap), stream_(stream) {}

  /// core::DeviceQueue::ListChanges, after the work that the stream contains. On an error nothing
  /// of the call still runs on the device. kResourceExhausted: memory; kUnavailable: the device
  /// failed.
  Result<std::vector<uint32_t>> List(std::span<const core::PageComparison> pages);

  /// Contiguous device memory.
  using Range = std::span<const std::byte>;
  /// Appends where the results of one page of the last List are: those of FetchChanges.
  void AppendRanges(uint32_t page, std::vector<Range>& ranges) const;

 private:
  const DeviceHeap* const heap_;
  const Stream* const stream_;
  DeviceBuffer lists_;
  KernelTables<CompareJob, uint32_t, core::DeviceQueue::kMaxComparedPages> tables_;
  std::vector<core::PageComparison> pages_;  // of the last List
  std::vector<uint32_t> found_;              // its result
};

}  // namespace cairn::cuda::internal
