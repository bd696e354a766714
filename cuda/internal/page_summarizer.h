#pragma once
/// Sums up the elements of pages in device memory.

#include <span>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/device_job.h"
#include "cuda/internal/kernel_tables.h"
#include "cuda/internal/stream.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// Statistics on one stream. Device memory and page-locked host memory: 1 MiB each, allocated when
/// they are first needed, and kept until the destructor.
///
/// Ownership: borrows the heap and the stream, which must outlive it; `stream` must be valid at the
/// first call. Threads: one at a time. The device of the heap must be current in every call.
class PageSummarizer {
 public:
  PageSummarizer(const DeviceHeap* heap, const Stream* stream) : heap_(heap), stream_(stream) {}

  /// core::DeviceQueue::Summarize, after the work that the stream contains. On an error nothing of
  /// the call still runs on the device. kResourceExhausted: memory; kUnavailable: the device
  /// failed.
  Result<std::vector<core::ElementSummary>> Summarize(std::span<const core::ElementPage> pages);

 private:
  const DeviceHeap* const heap_;
  const Stream* const stream_;
  KernelTables<SummarizeJob, PageSummary, core::DeviceQueue::kMaxSummarizedPages> tables_;
};

}  // namespace cairn::cuda::internal
