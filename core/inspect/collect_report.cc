#include "core/inspect/collect_report.h"

#include "core/inspect/internal/report_collector.h"

namespace cairn::core {

Result<Report> CollectReport(const kv::Store& store, const ReportOptions& options) {
  constexpr int kMaxRounds = 8;
  for (int round = 1;; ++round) {
    CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
    internal::ReportCollector collector(snapshot, options);
    CAIRN_TRY_ASSIGN(Report report, collector.Collect(store.storage()));
    report.uuid = store.uuid();
    if (report.problems.empty() || round == kMaxRounds) return report;
    // Missing objects may have been deleted or compacted since the snapshot was taken.
    CAIRN_TRY_ASSIGN(const auto latest, store.Latest());
    if (latest == snapshot) return report;
  }
}

}  // namespace cairn::core
