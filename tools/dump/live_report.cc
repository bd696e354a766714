// The report of a store that may change.

#include "tools/dump/live_report.h"

#include <fmt/format.h>

#include "core/inspect/collect_report.h"
#include "tools/common/json.h"
#include "tools/common/timestamps.h"
#include "tools/dump/report_page.h"

namespace cairn::tools {

LiveReport::LiveReport(const core::CheckpointStore* store, bool all_steps)
    : store_(store), all_steps_(all_steps), start_(fmt::format("{:x}", NowUnixNs())) {}

Result<LiveReport::State> LiveReport::Latest() {
  CAIRN_TRY_ASSIGN(auto snapshot, store_->kv().Latest());
  const std::scoped_lock lock(state_mutex_);
  if (snapshot != snapshot_) {
    ++changes_;
    snapshot_ = snapshot;
  }
  return State{.version = fmt::format("{}-{}", start_, changes_), .snapshot = std::move(snapshot)};
}

Result<std::shared_ptr<const LiveReport::Document>> LiveReport::Current(
    const core::Progress& progress) {
  CAIRN_TRY_ASSIGN(const State state, Latest());
  std::unique_lock collecting(collect_mutex_, std::try_to_lock);
  if (!collecting) {
    // Only those wait who would get nothing.
    if (auto last = Last()) return last;
    collecting.lock();
  }
  auto last = Last();
  if (last != nullptr && (last->version == state.version || Clock::now() < next_collection_)) {
    return last;
  }
  const Clock::time_point begin = Clock::now();
  auto document = Collect(state, progress);
  const Clock::time_point end = Clock::now();
  next_collection_ = end + 9 * (end - begin);
  if (!document) return std::unexpected(std::move(document).error());
  const std::scoped_lock lock(state_mutex_);
  document_ = *document;
  return document;
}

std::shared_ptr<const LiveReport::Document> LiveReport::Last() {
  const std::scoped_lock lock(state_mutex_);
  return document_;
}

Result<std::shared_ptr<const LiveReport::Document>> LiveReport::Collect(
    const State& state, const core::Progress& progress) const {
  core::ReportOptions options{.progress = progress};
  if (all_steps_) options.max_records = 0;
  // A step that is committed meanwhile belongs to the next version, even if it is in this report.
  CAIRN_TRY_ASSIGN(const core::Report report, core::CollectReport(store_->kv(), options));
  Json json = ReportJson(report, /*with_keys=*/true);
  json["live"] = {{"version", state.version}};
  return std::make_shared<const Document>(
      Document{.json = JsonLine(json), .version = state.version});
}

}  // namespace cairn::tools
