#include "core/inspect/collect_report.h"

#include "core/inspect/internal/report_collector.h"

namespace cairn::core {

Result<Report> CollectReport(const kv::Store& store, const ReportOptions& options) {
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  internal::ReportCollector collector(snapshot, options);
  CAIRN_TRY_ASSIGN(Report report, collector.Collect(store.directory()));
  report.uuid = store.uuid();
  return report;
}

}  // namespace cairn::core
