// `kv-dump steps`: one row per step.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

std::vector<Cell> StepCells(const kv::StepInfo& step, int64_t now_unix_ns) {
  return {fmt::to_string(step.step),
          LocalTime(step.created_unix_ns),
          Age(step.created_unix_ns, now_unix_ns),
          GroupedCount(step.world_size),
          GroupedCount(step.tensor_count + step.value_count),
          GroupedCount(step.chunk_count),
          Percent(step.reused_chunk_count, step.chunk_count),
          HumanBytes(step.logical_bytes),
          HumanBytes(step.written_bytes),
          step.base_step ? fmt::to_string(*step.base_step) : "-"};
}

/// Whether parents are worth a column: one is neither the step in the row above nor one that was
/// deleted between the two.
bool HasOtherParents(const std::vector<kv::StepInfo>& steps) {
  for (size_t i = 1; i < steps.size(); ++i) {
    const kv::StepInfo& before = steps[i - 1];
    const auto& parent = steps[i].parent;
    const bool is_before = parent && parent->attempt == before.attempt;
    if (is_before) continue;
    if (!parent || parent->step <= before.step || parent->step >= steps[i].step) return true;
  }
  return false;
}

std::string ParentText(const kv::StepInfo& step, const std::vector<kv::StepInfo>& steps) {
  if (!step.parent) return "-";
  const auto found = std::ranges::find(steps, step.parent->attempt, &kv::StepInfo::attempt);
  if (found == steps.end()) return fmt::format("{} (absent)", step.parent->step);
  return fmt::to_string(found->step);
}

/// The tensors of a step for which a condition holds, and those of which it is not known.
struct MatchingKeys {
  uint64_t count = 0;
  std::string first;
  uint64_t unknown = 0;  // tensors without statistics
};

/// Returns what each step has that is not empty, and leaves only the steps that have matches.
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
      if (LacksStatistics(tensor, statistics)) ++matching[step.step].unknown;
      if (!filter.Matches(tensor, statistics)) return;
      MatchingKeys& found = matching[step.step];
      if (found.count++ == 0) found.first = tensor.fqn;
    };
    CAIRN_TRY(ForEachStatistics(opened, step, {}, count));
  }
  std::erase_if(steps, [&](const kv::StepInfo& step) {
    const auto found = matching.find(step.step);
    return found == matching.end() || found->second.count == 0;
  });
  return matching;
}

/// States of how many steps the condition was not examined completely, and what to do.
std::string UnknownText(const OpenedStore& opened, const std::vector<uint64_t>& unknown) {
  constexpr size_t kNamed = 20;
  const std::span named = std::span(unknown).first(std::min(unknown.size(), kNamed));
  return fmt::format(
      "Not known of {}, which {} tensors without statistics: {}{}. To compute them: kv-admin "
      "statistics {}",
      Plural(unknown.size(), "step"), unknown.size() == 1 ? "has" : "have", fmt::join(named, ", "),
      named.size() < unknown.size() ? ", ..." : "",
      ShellWord(fmt::format("{}@{{{}}}", opened.address.store, fmt::join(named, ","))));
}

}  // namespace

Result<int> DumpSteps(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "steps"));
  CAIRN_TRY_ASSIGN(std::vector<kv::StepInfo> steps, opened.store->Steps());
  const std::vector<kv::StepInfo> all_steps = steps;
  std::map<uint64_t, MatchingKeys> matching;
  if (!run.where.empty()) {
    CAIRN_TRY_ASSIGN(matching, KeepMatching(opened, steps, run.where));
  }
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  // Columns that few stores need are shown only if they have contents.
  const StepNotes notes(all_steps, snapshot->tags());
  const bool has_parents = HasOtherParents(all_steps);
  std::vector<Column> columns = {Right("STEP"), Left("SAVED"),   Right("AGE"),    Right("RANKS"),
                                 Right("KEYS"), Right("CHUNKS"), Right("REUSED"), Right("LOGICAL"),
                                 Right("NEW"),  Right("BASE")};
  if (has_parents) columns.push_back(Right("PARENT"));
  notes.AppendColumns(columns, /*flexible=*/false);
  if (!run.where.empty()) {
    columns.push_back(Right("MATCHES"));
    columns.push_back(Flexible("FIRST MATCH"));
  }
  Rows rows(run, std::move(columns), {{"store", StoreText(opened)}}, "steps");
  const int64_t now = NowUnixNs();
  for (const kv::StepInfo& step : steps) {
    const auto found = matching.find(step.step);
    rows.Add(
        [&] {
          std::vector<Cell> cells = StepCells(step, now);
          if (has_parents) cells.emplace_back(ParentText(step, all_steps));
          notes.AppendCells(step, cells);
          if (found != matching.end()) {
            cells.emplace_back(GroupedCount(found->second.count));
            cells.emplace_back(EscapeText(found->second.first));
          }
          return cells;
        },
        [&] {
          Json json = StepJson(step, &snapshot->tags());
          if (found != matching.end()) {
            json["matching_tensors"] = found->second.count;
            json["first_match"] = JsonText(found->second.first);
            json["tensors_without_statistics"] = found->second.unknown;
          }
          return json;
        });
  }
  std::vector<uint64_t> unknown;
  for (const auto& [step, keys] : matching) {
    if (keys.unknown > 0) unknown.push_back(step);
  }
  Json tail = Json::object();
  if (!run.where.empty()) tail["steps_with_unknown_values"] = unknown;
  CAIRN_TRY(rows.Finish({}, tail));
  if (rows.is_empty()) {
    PrintRemark(run, run.where.empty() ? "No steps yet."
                                       : "No step has a tensor whose recorded statistics match.");
  }
  if (!unknown.empty()) PrintRemark(run, UnknownText(opened, unknown));
  return kExitSuccess;
}

}  // namespace cairn::tools
