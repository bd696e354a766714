#include "cuda/internal/page_summarizer.h"

#include "cuda/internal/statistics_kernel.h"

namespace cairn::cuda::internal {

Result<std::vector<core::ElementSummary>> PageSummarizer::Summarize(
    std::span<const core::ElementPage> pages) {
  std::vector<SummarizeJob> jobs;
  jobs.reserve(pages.size());
  for (const core::ElementPage& page : pages) {
    jobs.push_back({.page = reinterpret_cast<const unsigned char*>(page.data),
                    .length_bytes = page.length_bytes,
                    .dtype = page.dtype});
  }
  const auto launch = [&](const SummarizeJob* table, PageSummary* summaries) {
    return LaunchSummarize(
        {.jobs = table, .job_count = static_cast<uint32_t>(jobs.size()), .summaries = summaries},
        heap_->multiprocessors(), stream_->get());
  };
  CAIRN_TRY_ASSIGN(const std::vector<PageSummary> found,
                   tables_.Run(*heap_, *stream_, jobs, "computing statistics on the GPU", launch));
  std::vector<core::ElementSummary> summaries;
  summaries.reserve(found.size());
  for (const PageSummary& page : found) {
    summaries.push_back({.min = page.min,
                         .max = page.max,
                         .mean = page.mean,
                         .finite = page.finite,
                         .zeros = page.zeros,
                         .nans = page.nans,
                         .infs = page.infs});
  }
  return summaries;
}

}  // namespace cairn::cuda::internal
