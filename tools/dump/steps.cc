// `kv-dump steps`: one row per step.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/common/timestamps.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

std::vector<std::string> TagsOf(const kv::StepInfo& step, const kv::Tags& tags) {
  std::vector<std::string> names;
  for (const auto& [name, tagged] : tags) {
    if (tagged == step.step) names.push_back(name);
  }
  return names;
}

/// Returns the metrics, and the first line of the note.
std::string AnnotationsText(const kv::StepInfo& step) {
  std::vector<std::string> parts;
  for (const kv::Metric& metric : step.metrics) {
    parts.push_back(fmt::format("{}={:.6g}", EscapeText(metric.name), metric.value));
  }
  const std::string line = step.note.substr(0, step.note.find('\n'));
  if (!line.empty()) parts.push_back(EscapeText(line.substr(0, 60)));
  return fmt::to_string(fmt::join(parts, "  "));
}

/// The tensors of a step for which a condition holds.
struct MatchingKeys {
  uint64_t count = 0;
  std::string first;
};

/// Leaves only the steps that have such tensors.
Result<std::map<uint64_t, MatchingKeys>> KeepMatching(const OpenedStore& opened,
                                                      std::vector<kv::StepInfo>& steps,
                                                      const std::string& where) {
  CAIRN_TRY_ASSIGN(const StatisticsFilter filter, StatisticsFilter::Parse(where));
  std::map<uint64_t, MatchingKeys> matching;
  ProgressLine progress("reading statistics of tensors", ProgressUnit::kCount);
  uint64_t tensors = 0, all_tensors = 0;
  for (const kv::StepInfo& step : steps) all_tensors += step.tensor_count;
  for (const kv::StepInfo& step : steps) {
    const auto count = [&](const core::TensorInfo& tensor,
                           const std::optional<core::StoredStatistics>& statistics) {
      progress.Update(++tensors, all_tensors);
      if (!filter.Matches(tensor, statistics)) return;
      MatchingKeys& found = matching[step.step];
      if (found.count++ == 0) found.first = tensor.fqn;
    };
    CAIRN_TRY(ForEachStatistics(opened, step, {}, count));
  }
  std::erase_if(steps, [&](const kv::StepInfo& step) { return !matching.contains(step.step); });
  return matching;
}

}  // namespace

Result<int> DumpSteps(const DumpRun& run, const std::string& store, const std::string& where) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(store, "steps"));
  CAIRN_TRY_ASSIGN(std::vector<kv::StepInfo> steps, opened.store->Steps());
  std::map<uint64_t, MatchingKeys> matching;
  if (!where.empty()) {
    CAIRN_TRY_ASSIGN(matching, KeepMatching(opened, steps, where));
  }
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  if (run.json) {
    JsonList list(run.out, {{"store", StoreText(opened)}}, "steps");
    for (const kv::StepInfo& step : steps) {
      Json json = StepJson(step);
      const std::vector<std::string> tags = TagsOf(step, snapshot->tags());
      Json list_of_tags = Json::List();
      for (const std::string& tag : tags) list_of_tags.Append(tag);
      if (!tags.empty()) json.Set("tags", std::move(list_of_tags));
      if (const auto found = matching.find(step.step); found != matching.end()) {
        json.Set("matching_tensors", found->second.count);
        json.Set("first_match", JsonText(found->second.first));
      }
      list.Add(std::move(json));
    }
    list.Finish();
    return kExitSuccess;
  }
  if (steps.empty()) {
    PrintRemark(run, where.empty() ? "No steps yet."
                                   : "No step has a tensor whose recorded statistics match.");
  }
  // Columns that few stores need are shown only if they have contents.
  const bool has_tags = !snapshot->tags().empty();
  const bool has_notes = std::ranges::any_of(
      steps, [](const kv::StepInfo& step) { return !step.metrics.empty() || !step.note.empty(); });
  std::vector<Column> columns = {{"STEP", Align::kRight},   {"SAVED"},
                                 {"AGE", Align::kRight},    {"RANKS", Align::kRight},
                                 {"KEYS", Align::kRight},   {"CHUNKS", Align::kRight},
                                 {"REUSED", Align::kRight}, {"LOGICAL", Align::kRight},
                                 {"NEW", Align::kRight},    {"BASE", Align::kRight}};
  if (has_tags) columns.push_back({"TAGS"});
  if (has_notes) columns.push_back({"METRICS AND NOTE"});
  if (!where.empty()) {
    columns.push_back({"MATCHES", Align::kRight});
    columns.push_back({"FIRST MATCH", Align::kLeft, true});
  }
  Table table(run.out, std::move(columns));
  const int64_t now = NowUnixNs();
  for (const kv::StepInfo& step : steps) {
    std::vector<Cell> cells = {fmt::to_string(step.step),
                               LocalTime(step.created_unix_ns),
                               Age(step.created_unix_ns, now),
                               GroupedCount(step.world_size),
                               GroupedCount(step.tensor_count + step.value_count),
                               GroupedCount(step.chunk_count),
                               Percent(step.reused_chunk_count, step.chunk_count),
                               HumanBytes(step.logical_bytes),
                               HumanBytes(step.written_bytes),
                               step.base_step ? fmt::to_string(*step.base_step) : "-"};
    if (has_tags)
      cells.emplace_back(fmt::to_string(fmt::join(TagsOf(step, snapshot->tags()), ", ")));
    if (has_notes) cells.emplace_back(AnnotationsText(step));
    if (const auto found = matching.find(step.step); found != matching.end()) {
      cells.emplace_back(GroupedCount(found->second.count));
      cells.emplace_back(EscapeText(found->second.first));
    }
    table.Add(std::move(cells));
  }
  table.Finish();
  return kExitSuccess;
}

}  // namespace cairn::tools
