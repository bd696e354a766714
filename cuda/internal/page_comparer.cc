#include "cuda/internal/page_comparer.h"

#include "cuda/internal/compare_kernel.h"
#include "kv/digest.h"

namespace cairn::cuda::internal {

static_assert(MaxListedElements(kv::kPageBytes, 1) <= UINT16_MAX);
static_assert(2 * kListBytes == kv::kPageBytes);
static_assert(kMostlyChangedPage == core::kMostlyChanged);

Result<std::vector<uint32_t>> PageComparer::List(std::span<const core::PageComparison> pages) {
  pages_.clear();
  CAIRN_TRY(heap_->Grow(lists_, core::DeviceQueue::kMaxComparedPages * kListBytes));
  std::vector<CompareJob> jobs;
  jobs.reserve(pages.size());
  for (const core::PageComparison& page : pages) {
    jobs.push_back({.page = reinterpret_cast<const unsigned char*>(page.page),
                    .base = reinterpret_cast<unsigned char*>(page.base),
                    .length_bytes = page.length_bytes,
                    .element_bytes = page.element_bytes});
  }
  const auto launch = [&](const CompareJob* table, uint32_t* counts) {
    return LaunchCompare({.jobs = table,
                          .job_count = static_cast<uint32_t>(jobs.size()),
                          .lists = lists_.data(),
                          .counts = counts},
                         heap_->multiprocessors(), stream_->get());
  };
  CAIRN_TRY_ASSIGN(found_, tables_.Run(*heap_, *stream_, jobs, "comparing on the GPU", launch));
  pages_.assign(pages.begin(), pages.end());
  return found_;
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
