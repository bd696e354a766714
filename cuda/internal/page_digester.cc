#include "cuda/internal/page_digester.h"

#include <algorithm>
#include <cstring>

#include "cuda/internal/digest_kernel.h"
#include "cuda/internal/strided_copy.h"
#include "kv/base/digest.h"

namespace cairn::cuda::internal {
namespace {

constexpr uint64_t kWindowBytes = 64 << 20;
static_assert(kWindowBytes % kv::kPageBytes == 0);

/// Splits the jobs: the contiguous ones become page jobs, numbered consecutively; for all jobs, the
/// index of the digest of the first page is noted.
struct DigestPlan {
  std::vector<uint64_t> first_page_digest;  // by job
  std::vector<PageJob> contiguous;
  uint64_t contiguous_pages = 0;

  explicit DigestPlan(std::span<const core::DigestJob> jobs) {
    uint64_t page_digest = 0;
    first_page_digest.reserve(jobs.size());
    for (const core::DigestJob& job : jobs) {
      const uint64_t pages = kv::PageCount(job.length_bytes);
      first_page_digest.push_back(page_digest);
      if (pages > 0 && core::IsContiguous(job.source.shape, job.source.strides)) {
        contiguous.push_back(
            {.data = reinterpret_cast<const unsigned char*>(job.source.data) + job.begin_bytes,
             .length_bytes = job.length_bytes,
             .first_page = contiguous_pages,
             .first_page_digest = page_digest,
             .base_page = job.base_page});
        contiguous_pages += pages;
      }
      page_digest += pages;
    }
  }
};

}  // namespace

Result<core::DeviceQueue::Digests> PageDigester::Digest(std::span<const core::DigestJob> jobs,
                                                        const core::DevicePageDigests* base) {
  uint64_t page_count = 0;
  for (const core::DigestJob& job : jobs) page_count += kv::PageCount(job.length_bytes);
  const uint64_t changed_bytes = (page_count + 63) / 64 * sizeof(uint64_t);
  CAIRN_TRY_ASSIGN(DeviceBuffer page_digests, heap_->Allocate(page_count * sizeof(uint64_t)));
  CAIRN_TRY_ASSIGN(const DeviceBuffer changed, heap_->Allocate(changed_bytes));
  const auto* const base_array = static_cast<const PageDigestArray*>(base);
  const Tables tables{.base = base_array != nullptr ? base_array->data() : nullptr,
                      .page_digests = page_digests.As<uint64_t>(),
                      .changed = changed.As<uint32_t>()};
  auto digested = DigestInto(jobs, tables, page_count, changed_bytes);
  if (!digested) {
    (void)stream_->Synchronize();  // the kernels must end before their memory is freed
    return Fail(std::move(digested).error());
  }
  return core::DeviceQueue::Digests{
      .page_digests = std::make_shared<const PageDigestArray>(std::move(page_digests), page_count),
      .changed = *std::move(digested)};
}

Result<std::byte*> PageDigester::HostResults(uint64_t length_bytes) {
  CAIRN_TRY(host_results_.Grow(length_bytes));
  return host_results_.data();
}

Result<std::vector<uint64_t>> PageDigester::DigestInto(std::span<const core::DigestJob> jobs,
                                                       const Tables& tables, uint64_t page_count,
                                                       uint64_t changed_bytes) {
  if (page_count == 0) return {};
  const DigestPlan plan(jobs);
  // As large as all digests, so that fetching them later allocates nothing.
  CAIRN_TRY_ASSIGN(std::byte* const results, HostResults(page_count * sizeof(uint64_t)));
  CAIRN_TRY(Check(cudaMemsetAsync(tables.changed, 0, changed_bytes, stream_->get()),
                  "clearing GPU memory"));
  CAIRN_TRY(DigestBatch(plan.contiguous, plan.contiguous_pages, tables));
  CAIRN_TRY(DigestStrided(jobs, plan.first_page_digest, tables));
  CAIRN_TRY(Check(cudaMemcpyAsync(results, tables.changed, changed_bytes, cudaMemcpyDeviceToHost,
                                  stream_->get()),
                  "copying digest results from the GPU"));
  CAIRN_TRY_ASSIGN(const Event done, Event::Make());
  CAIRN_TRY(done.Record(stream_->get()));
  CAIRN_TRY(done.Wait());
  std::vector<uint64_t> words(changed_bytes / sizeof(uint64_t));
  std::memcpy(words.data(), results, changed_bytes);
  return words;
}

Result<void> PageDigester::DigestBatch(std::span<const PageJob> jobs, uint64_t page_count,
                                       const Tables& tables) {
  if (jobs.empty()) return {};
  // The previous kernel reads the table that is overwritten here.
  CAIRN_TRY(stream_->Synchronize());
  CAIRN_TRY(host_jobs_.Grow(jobs.size_bytes()));
  CAIRN_TRY(heap_->Grow(jobs_, jobs.size_bytes()));
  std::memcpy(host_jobs_.data(), jobs.data(), jobs.size_bytes());
  CAIRN_TRY(Check(cudaMemcpyAsync(jobs_.data(), host_jobs_.data(), jobs.size_bytes(),
                                  cudaMemcpyHostToDevice, stream_->get()),
                  "copying the table of digest jobs to the GPU"));
  return Check(LaunchDigest({.jobs = jobs_.As<PageJob>(),
                             .job_count = static_cast<uint32_t>(jobs.size()),
                             .page_count = page_count,
                             .base = tables.base,
                             .page_digests = tables.page_digests,
                             .changed = tables.changed},
                            heap_->multiprocessors(), stream_->get()),
               "digesting on the GPU");
}

Result<void> PageDigester::DigestStrided(std::span<const core::DigestJob> jobs,
                                         std::span<const uint64_t> first_page_digest,
                                         const Tables& tables) {
  std::vector<PageJob> window;
  uint64_t window_bytes = 0;
  uint64_t window_pages = 0;
  const auto send = [&]() -> Result<void> {
    CAIRN_TRY(DigestBatch(window, window_pages, tables));
    window.clear();
    window_bytes = 0;
    window_pages = 0;
    return {};
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    const core::DigestJob& job = jobs[i];
    if (core::IsContiguous(job.source.shape, job.source.strides)) continue;
    CAIRN_TRY(heap_->Grow(window_, kWindowBytes));
    for (uint64_t at = 0; at < job.length_bytes;) {
      // Each part begins a new page of the window; parts end where pages of the job end.
      const uint64_t length_bytes = std::min(job.length_bytes - at, kWindowBytes - window_bytes);
      const uint64_t page = at / kv::kPageBytes;
      unsigned char* const packed = window_.data() + window_bytes;
      CAIRN_TRY(EnqueueStridedCopy(job.source, job.begin_bytes + at, {packed, length_bytes},
                                   StridedDirection::kPack, heap_->multiprocessors(),
                                   stream_->get()));
      window.push_back({.data = packed,
                        .length_bytes = length_bytes,
                        .first_page = window_pages,
                        .first_page_digest = first_page_digest[i] + page,
                        .base_page = job.base_page == core::DigestJob::kNoBase
                                         ? job.base_page
                                         : job.base_page + page});
      window_bytes += kv::PageCount(length_bytes) * kv::kPageBytes;
      window_pages += kv::PageCount(length_bytes);
      at += length_bytes;
      if (window_bytes == kWindowBytes) CAIRN_TRY(send());
    }
  }
  return send();
}

}  // namespace cairn::cuda::internal
