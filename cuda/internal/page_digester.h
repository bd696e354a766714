#pragma once
/// Page digests of tensors in device memory: one launch for all contiguous payload; strided payload
/// is packed into a window of device memory first.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/device_job.h"
#include "cuda/internal/stream.h"
#include "kv/base/error.h"

namespace cairn::cuda::internal {

/// The only implementation of DevicePageDigests: one array of device memory.
class PageDigestArray final : public core::DevicePageDigests {
 public:
  PageDigestArray(DeviceBuffer buffer, uint64_t page_count)
      : buffer_(std::move(buffer)), page_count_(page_count) {}
  uint64_t page_count() const override { return page_count_; }
  uint64_t* data() const { return buffer_.As<uint64_t>(); }

 private:
  const DeviceBuffer buffer_;
  const uint64_t page_count_;
};

/// Digests on one stream.
///
/// Device memory: 40 bytes per job, a bit more than 8 bytes per page during a call, and 64 MiB once
/// a strided tensor was digested. Page-locked host memory: as much as the tables and the results.
/// Allocated when it is first needed, and kept until the destructor.
///
/// Ownership: borrows the heap and the stream, which must outlive it; `stream` must be valid at the
/// first call. Threads: one at a time. The device of the heap must be current in every call.
class PageDigester {
 public:
  PageDigester(const DeviceHeap* heap, const Stream* stream) : heap_(heap), stream_(stream) {}

  /// Digests all jobs after the work that the stream contains, and waits for the result. `base` is
  /// null or was returned by such a call for the same device. On an error nothing of the call still
  /// runs on the device. kResourceExhausted: memory; kUnimplemented: a tensor with too many
  /// dimensions that cannot be joined; kUnavailable: the device failed.
  Result<core::DeviceQueue::Digests> Digest(std::span<const core::DigestJob> jobs,
                                            const core::DevicePageDigests* base);

  /// Page-locked host memory of at least `length_bytes`, for one use at a time. After Digest it is
  /// large enough for all digests of that call. Its contents are overwritten by the next Digest.
  Result<std::byte*> HostResults(uint64_t length_bytes);

 private:
  /// The device memory that the launches of one call read and write.
  struct Tables {
    const uint64_t* base = nullptr;
    uint64_t* page_digests = nullptr;
    uint32_t* changed = nullptr;
  };

  Result<std::vector<uint64_t>> DigestInto(std::span<const core::DigestJob> jobs,
                                           const Tables& tables, uint64_t page_count,
                                           uint64_t changed_bytes);
  /// `first_page_digest`: by job, the index of the digest of its first page.
  Result<void> DigestStrided(std::span<const core::DigestJob> jobs,
                             std::span<const uint64_t> first_page_digest, const Tables& tables);
  Result<void> DigestBatch(std::span<const PageJob> jobs, uint64_t page_count,
                           const Tables& tables);

  const DeviceHeap* const heap_;
  const Stream* const stream_;
  DeviceBuffer jobs_;
  DeviceBuffer window_;  // strided payload, packed
  PinnedBuffer host_jobs_;
  PinnedBuffer host_results_;
};

}  // namespace cairn::cuda::internal
