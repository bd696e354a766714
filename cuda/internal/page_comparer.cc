#include "cuda/internal/page_comparer.h"

#include <cstring>

#include "cuda/internal/compare_kernel.h"
#include "kv/digest.h"

namespace cairn::cuda::internal {

static_assert(MaxListedElements(kv::kPageBytes, 1) <= UINT16_MAX);
static_assert(2 * kListBytes == kv::kPageBytes);
static_assert(kMostlyChangedPage == core::kMostlyChanged);

Result<std::vector<uint32_t>> PageComparer::List(std::span<const core::PageComparison> pages) {
  CAIRN_CHECK(pages.size() <= core::DeviceQueue::kMaxComparedPages);
  auto counts = Run(pages);
  if (!counts) {
    (void)stream_->Synchronize();  // the kernel must end before its memory is freed
    pages_.clear();
    return counts;
  }
  pages_.assign(pages.begin(), pages.end());
  found_ = *counts;
  return counts;
}

Result<std::vector<uint32_t>> PageComparer::Run(std::span<const core::PageComparison> pages) {
  if (pages.empty()) return std::vector<uint32_t>();
  constexpr size_t kMax = core::DeviceQueue::kMaxComparedPages;
  CAIRN_TRY(heap_->Grow(jobs_, kMax * sizeof(CompareJob)));
  CAIRN_TRY(heap_->Grow(lists_, kMax * kListBytes));
  CAIRN_TRY(heap_->Grow(counts_, kMax * sizeof(uint32_t)));
  CAIRN_TRY(host_jobs_.Grow(kMax * sizeof(CompareJob)));
  CAIRN_TRY(host_counts_.Grow(kMax * sizeof(uint32_t)));
  auto* const jobs = host_jobs_.As<CompareJob>();
  for (size_t i = 0; i < pages.size(); ++i) {
    jobs[i] = {.page = reinterpret_cast<const unsigned char*>(pages[i].page),
               .base = reinterpret_cast<unsigned char*>(pages[i].base),
               .length_bytes = pages[i].length_bytes,
               .element_bytes = pages[i].element_bytes};
  }
  CAIRN_TRY(Check(cudaMemcpyAsync(jobs_.data(), jobs, pages.size() * sizeof(CompareJob),
                                  cudaMemcpyHostToDevice, stream_->get()),
                  "copying the table of comparisons to the GPU"));
  CAIRN_TRY(Check(LaunchCompare({.jobs = jobs_.As<CompareJob>(),
                                 .job_count = static_cast<uint32_t>(pages.size()),
                                 .lists = lists_.data(),
                                 .counts = counts_.As<uint32_t>()},
                                heap_->multiprocessors(), stream_->get()),
                  "comparing on the GPU"));
  CAIRN_TRY(
      Check(cudaMemcpyAsync(host_counts_.data(), counts_.data(), pages.size() * sizeof(uint32_t),
                            cudaMemcpyDeviceToHost, stream_->get()),
            "copying the results of comparisons from the GPU"));
  CAIRN_TRY_ASSIGN(const Event done, Event::Make());
  CAIRN_TRY(done.Record(stream_->get()));
  CAIRN_TRY(done.Wait());
  const auto* const counts = host_counts_.As<uint32_t>();
  return std::vector<uint32_t>(counts, counts + pages.size());
}

void PageComparer::AppendRanges(uint32_t page, std::vector<Range>& ranges) const {
  const core::PageComparison& compared = pages_.at(page);
  const uint32_t count = found_.at(page);
  if (count == core::kMostlyChanged) {
    ranges.emplace_back(compared.base, compared.length_bytes);
    return;
  }
  const auto* const list =
      reinterpret_cast<const std::byte*>(lists_.data()) + static_cast<uint64_t>(page) * kListBytes;
  ranges.emplace_back(list + ListPositionsOffset(compared.element_bytes), count * sizeof(uint16_t));
  ranges.emplace_back(list, static_cast<uint64_t>(count) * compared.element_bytes);
}

}  // namespace cairn::cuda::internal
