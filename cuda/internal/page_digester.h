#pragma once
/// Page digests of tensors in device memory: one launch for all contiguous payload; strided payload
/// is packed into a window of device memory first.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/kernels.h"
#include "cuda/internal/strided_copy.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"

namespace cairn::cuda::internal {

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
  using Digests = core::DeviceQueue::Digests;

  PageDigester(const DeviceHeap* heap, const Stream* stream) : heap_(heap), stream_(stream) {}

  /// Digests all jobs after the work that the stream contains, and waits for the result. On an
  /// error nothing of the call still runs on the device. kResourceExhausted: memory;
  /// kUnimplemented: a tensor with too many dimensions that cannot be joined; kUnavailable: the
  /// device failed.
  Result<Digests> Digest(std::span<const core::DigestJob> jobs, const core::DeviceMemory& base) {
    uint64_t page_count = 0;
    for (const core::DigestJob& job : jobs) page_count += kv::PageCount(job.length_bytes);
    Digests digests;
    if (page_count == 0) return digests;
    digests.changed.resize(DivCeil(page_count, 64));
    const uint64_t changed_bytes = digests.changed.size() * sizeof(uint64_t);
    CAIRN_TRY_ASSIGN(digests.page_digests, heap_->Allocate(page_count * sizeof(uint64_t)));
    CAIRN_TRY_ASSIGN(const core::DeviceMemory changed, heap_->Allocate(changed_bytes));
    const DigestLaunch tables{.base = base.As<uint64_t>(),
                              .page_digests = digests.page_digests.As<uint64_t>(),
                              .changed = changed.As<uint32_t>()};
    const auto digest = [&]() -> Result<void> {
      // As large as all digests, so that fetching them later allocates nothing.
      CAIRN_TRY(host_results_.Grow(page_count * sizeof(uint64_t)));
      CAIRN_TRY(Check(cudaMemsetAsync(tables.changed, 0, changed_bytes, stream_->get()),
                      "clearing GPU memory"));
      CAIRN_TRY(DigestAll(jobs, tables));
      return FetchTo(changed.data(), std::as_writable_bytes(std::span(digests.changed)));
    };
    if (Result<void> digested = digest(); !digested) {
      (void)stream_->Synchronize();  // the kernels must end before their memory is freed
      return Fail(std::move(digested).error());
    }
    return digests;
  }

  /// Copies device memory to `target` after the work that the stream contains, and waits.
  Result<void> FetchTo(const std::byte* source, std::span<std::byte> target) {
    CAIRN_TRY(host_results_.Grow(target.size()));
    CAIRN_TRY(Check(cudaMemcpyAsync(host_results_.data(), source, target.size(),
                                    cudaMemcpyDeviceToHost, stream_->get()),
                    "copying digest results from the GPU"));
    CAIRN_TRY(stream_->Synchronize());
    std::memcpy(target.data(), host_results_.data(), target.size());
    return {};
  }

 private:
  static constexpr uint64_t kWindowBytes = 64 << 20;
  static_assert(kWindowBytes % kv::kPageBytes == 0);

  /// Jobs of one launch, whose pages are numbered consecutively.
  struct Batch {
    std::vector<PageJob> jobs;
    uint64_t page_count = 0;

    void Add(const core::DigestJob& job, const unsigned char* data, uint64_t length_bytes,
             uint64_t first_page_digest, uint64_t skipped_pages) {
      jobs.push_back({.data = data,
                      .length_bytes = length_bytes,
                      .first_page = page_count,
                      .first_page_digest = first_page_digest + skipped_pages,
                      .base_page = job.base_page == core::DigestJob::kNoBase
                                       ? UINT64_MAX
                                       : job.base_page + skipped_pages});
      page_count += kv::PageCount(length_bytes);
    }
  };

  /// `tables`: what all launches read and write.
  Result<void> DigestAll(std::span<const core::DigestJob> jobs, const DigestLaunch& tables) {
    Batch contiguous;
    std::vector<std::pair<const core::DigestJob*, uint64_t>> strided;  // and its first page digest
    uint64_t page_digest = 0;
    for (const core::DigestJob& job : jobs) {
      if (job.length_bytes == 0) continue;
      if (core::IsContiguous(job.source.shape, job.source.strides)) {
        contiguous.Add(job,
                       reinterpret_cast<const unsigned char*>(job.source.data) + job.begin_bytes,
                       job.length_bytes, page_digest, 0);
      } else {
        strided.emplace_back(&job, page_digest);
      }
      page_digest += kv::PageCount(job.length_bytes);
    }
    CAIRN_TRY(Launch(contiguous, tables));
    if (strided.empty()) return {};
    CAIRN_TRY(heap_->Grow(window_, kWindowBytes));
    Batch window;
    for (const auto& [job, first_page_digest] : strided) {
      for (uint64_t at = 0; at < job->length_bytes;) {
        // Each part begins a new page of the window; parts end where pages of the job end.
        const uint64_t used_bytes = window.page_count * kv::kPageBytes;
        const uint64_t length_bytes = std::min(job->length_bytes - at, kWindowBytes - used_bytes);
        auto* const packed = window_.As<unsigned char>() + used_bytes;
        CAIRN_TRY(EnqueueStridedCopy(job->source, job->begin_bytes + at, {packed, length_bytes},
                                     /*unpack=*/false, heap_->multiprocessors(), stream_->get()));
        window.Add(*job, packed, length_bytes, first_page_digest, at / kv::kPageBytes);
        at += length_bytes;
        if (window.page_count * kv::kPageBytes < kWindowBytes) continue;
        CAIRN_TRY(Launch(std::exchange(window, {}), tables));
      }
    }
    return Launch(window, tables);
  }

  Result<void> Launch(const Batch& batch, const DigestLaunch& tables) {
    if (batch.jobs.empty()) return {};
    // The previous kernel reads the table that is overwritten here.
    CAIRN_TRY(stream_->Synchronize());
    const uint64_t table_bytes = batch.jobs.size() * sizeof(PageJob);
    CAIRN_TRY(host_jobs_.Grow(table_bytes));
    CAIRN_TRY(heap_->Grow(jobs_, table_bytes));
    std::memcpy(host_jobs_.data(), batch.jobs.data(), table_bytes);
    CAIRN_TRY(Check(cudaMemcpyAsync(jobs_.data(), host_jobs_.data(), table_bytes,
                                    cudaMemcpyHostToDevice, stream_->get()),
                    "copying the table of digest jobs to the GPU"));
    DigestLaunch launch = tables;
    launch.jobs = jobs_.As<PageJob>();
    launch.job_count = static_cast<uint32_t>(batch.jobs.size());
    launch.page_count = batch.page_count;
    return Check(LaunchDigest(launch, heap_->multiprocessors(), stream_->get()),
                 "digesting on the GPU");
  }

  const DeviceHeap* const heap_;
  const Stream* const stream_;
  core::DeviceMemory jobs_;
  core::DeviceMemory window_;  // strided payload, packed
  PinnedBuffer host_jobs_;
  PinnedBuffer host_results_;
};

}  // namespace cairn::cuda::internal
