// Digests of a queue: one launch for all payload that lies in one piece; strided payload is packed
// into a window first.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/internal/digest_kernel.h"
#include "cuda/internal/device_queue.h"
#include "kv/digest.h"

namespace cairn::cuda::internal {
namespace {

constexpr uint64_t kWindowBytes = 64 << 20;

class Leaves final : public core::DevicePageDigests {
 public:
  Leaves(DeviceBuffer buffer, uint64_t page_count)
      : buffer_(std::move(buffer)), page_count_(page_count) {}
  uint64_t page_count() const override { return page_count_; }
  uint64_t* data() const { return buffer_.As<uint64_t>(); }

 private:
  const DeviceBuffer buffer_;
  const uint64_t page_count_;
};

}  // namespace

struct CudaQueue::DigestTables {
  const uint64_t* base = nullptr;
  uint64_t* page_digests = nullptr;
  uint32_t* changed = nullptr;
};

Result<void> CudaQueue::DigestBatch(std::span<const PageJob> jobs, uint64_t page_count,
                               const DigestTables& tables) {
  if (jobs.empty()) return {};
  // The kernel before reads the table that is written now.
  CAIRN_TRY(pack_.Synchronize());
  CAIRN_TRY(host_jobs_.Grow(jobs.size_bytes()));
  CAIRN_TRY(heap_->Grow(digest_jobs_, jobs.size_bytes()));
  std::memcpy(host_jobs_.data(), jobs.data(), jobs.size_bytes());
  CAIRN_TRY(Check(cudaMemcpyAsync(digest_jobs_.data(), host_jobs_.data(), jobs.size_bytes(),
                                  cudaMemcpyHostToDevice, pack_.get()),
                  "telling the GPU what to digest"));
  return Check(LaunchDigest({.jobs = digest_jobs_.As<PageJob>(),
                             .job_count = static_cast<uint32_t>(jobs.size()),
                             .page_count = page_count,
                             .base = tables.base,
                             .page_digests = tables.page_digests,
                             .changed = tables.changed},
                            heap_->multiprocessors(), pack_.get()),
               "digesting on the GPU");
}

Result<void> CudaQueue::DigestStrided(std::span<const core::DigestJob> jobs,
                                 std::span<const uint64_t> first_page_digest, const DigestTables& tables) {
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
    CAIRN_TRY(heap_->Grow(digest_window_, kWindowBytes));
    for (uint64_t at = 0; at < job.length_bytes;) {
      // Each part on pages of its own: the windows are cut where pages end.
      const uint64_t length_bytes = std::min(job.length_bytes - at, kWindowBytes - window_bytes);
      const uint64_t page = at / kv::kPageBytes;
      unsigned char* const packed = digest_window_.data() + window_bytes;
      CAIRN_TRY(
          CopyStrided(job.source, job.begin_bytes + at, length_bytes, packed, /*unpack=*/false));
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

Result<CudaQueue::Digests> CudaQueue::Digest(std::span<const core::DigestJob> jobs,
                                   const core::DevicePageDigests* base) {
  uint64_t page_count = 0;
  for (const core::DigestJob& job : jobs) page_count += kv::PageCount(job.length_bytes);
  const uint64_t changed_bytes = (page_count + 63) / 64 * sizeof(uint64_t);
  CAIRN_TRY_ASSIGN(DeviceBuffer page_digests, heap_->Allocate(page_count * sizeof(uint64_t)));
  CAIRN_TRY_ASSIGN(const DeviceBuffer changed, heap_->Allocate(changed_bytes));
  auto digested = DigestInto(jobs, base, page_count, page_digests, changed);
  if (!digested) {
    Reset();  // before the kernels' memory goes
    return Fail(std::move(digested).error());
  }
  return Digests{.page_digests = std::make_shared<const Leaves>(std::move(page_digests), page_count),
                 .changed = *std::move(digested)};
}

Result<std::vector<uint64_t>> CudaQueue::DigestInto(std::span<const core::DigestJob> jobs,
                                               const core::DevicePageDigests* base, uint64_t page_count,
                                               const DeviceBuffer& page_digests,
                                               const DeviceBuffer& changed) {
  if (page_count == 0) return {};
  CAIRN_TRY(SendWithin());
  CAIRN_TRY(Send(Direction::kIn));
  const DeviceScope scope(device());
  if (copy_is_ahead_) CAIRN_TRY(Order(copy_, pack_));
  copy_is_ahead_ = false;

  std::vector<uint64_t> first_page_digest;
  std::vector<PageJob> contiguous;
  uint64_t page_digest = 0;
  uint64_t contiguous_pages = 0;
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

  const uint64_t changed_bytes = changed.length_bytes();
  CAIRN_TRY(host_results_.Grow(page_count * sizeof(uint64_t)));  // FetchPageDigests needs no more then
  const auto* const base_page_digests = static_cast<const Leaves*>(base);
  const DigestTables tables{.base = base_page_digests != nullptr ? base_page_digests->data() : nullptr,
                            .page_digests = page_digests.As<uint64_t>(),
                            .changed = changed.As<uint32_t>()};
  CAIRN_TRY(
      Check(cudaMemsetAsync(changed.data(), 0, changed_bytes, pack_.get()), "clearing GPU memory"));
  CAIRN_TRY(DigestBatch(contiguous, contiguous_pages, tables));
  CAIRN_TRY(DigestStrided(jobs, first_page_digest, tables));
  CAIRN_TRY(Check(cudaMemcpyAsync(host_results_.data(), changed.data(), changed_bytes,
                                  cudaMemcpyDeviceToHost, pack_.get()),
                  "bringing digests from the GPU"));
  CAIRN_TRY_ASSIGN(const Event done, Event::Make());
  CAIRN_TRY(done.Record(pack_.get()));
  CAIRN_TRY(done.Wait());
  std::vector<uint64_t> words(changed_bytes / sizeof(uint64_t));
  std::memcpy(words.data(), host_results_.data(), changed_bytes);
  return words;
}

Result<std::vector<uint64_t>> CudaQueue::FetchPageDigests(const core::DevicePageDigests& page_digests,
                                                std::span<const PageRange> ranges) {
  const DeviceScope scope(device());
  uint64_t count = 0;
  for (const PageRange& range : ranges) count += range.count;
  if (count == 0) return std::vector<uint64_t>();
  const bool joined = std::exchange(join_host_runs_, true);  // of one allocation
  CAIRN_TRY(host_results_.Grow(count * sizeof(uint64_t)));
  const core::TensorView view{
      .dtype = core::DType::kUInt8,
      .shape = {page_digests.page_count() * sizeof(uint64_t)},
      .data = reinterpret_cast<const std::byte*>(static_cast<const Leaves&>(page_digests).data()),
      .device = device()};
  const auto bring = [&]() -> Result<void> {
    std::byte* at = host_results_.data();
    for (const PageRange& range : ranges) {
      const std::span<std::byte> target(at, range.count * sizeof(uint64_t));
      CAIRN_TRY(CopyOut(view, range.first * sizeof(uint64_t), target));
      at += target.size();
    }
    CAIRN_TRY_ASSIGN(const Mark mark, Flush());
    return Await(mark);
  };
  if (Result<void> brought = bring(); !brought) {
    Reset();  // before the leaves' memory goes
    return Fail(std::move(brought).error());
  }
  join_host_runs_ = joined;
  std::vector<uint64_t> fetched(count);
  std::memcpy(fetched.data(), host_results_.data(), count * sizeof(uint64_t));
  return fetched;
}

}  // namespace cairn::cuda::internal
