#include "tools/dump/report_findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <vector>

#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

using core::Report;
using core::ReportModule;

struct Finding {
  enum class Level { kBad, kWarning, kGood, kInfo };
  std::string_view topic;
  Level level = Level::kInfo;
  std::string title;
  std::string text;
  std::vector<std::string> details;
  std::optional<size_t> module;
  std::optional<uint64_t> step;
};

constexpr uint32_t kMaxNameBytes = 160;  // in the page, with escapes
constexpr size_t kMaxDetails = 12;

/// The path elements that all names have in common, except for the last element of each.
std::string CommonModule(const std::vector<core::BadTensor>& tensors) {
  std::string_view common = tensors.front().fqn;
  common = common.substr(0, common.rfind('.') == std::string_view::npos ? 0 : common.rfind('.'));
  for (const core::BadTensor& tensor : tensors) {
    while (!common.empty() &&
           !(tensor.fqn.starts_with(common) && tensor.fqn.size() > common.size() &&
             tensor.fqn[common.size()] == '.')) {
      const size_t dot = common.rfind('.');
      common = common.substr(0, dot == std::string_view::npos ? 0 : dot);
    }
  }
  return std::string(common);
}

/// Returns where it began: the only tensor, or the module and its first tensor.
std::string WhereText(const core::BadStart& start) {
  const core::BadTensor& first = start.tensors.front();
  const std::string first_text =
      fmt::format("{} ({})", ShortName(first.fqn), Plural(first.values, "value"));
  if (start.tensor_count == 1) return first_text;
  const std::string module = CommonModule(start.tensors);
  const bool is_narrow = std::ranges::count(module, '.') >= 1;
  return fmt::format("{}{}; by name, the first is {}", Plural(start.tensor_count, "tensor"),
                     is_narrow ? " of " + ShortName(module) : "", first_text);
}

/// Adds the texts of the first items as details. There are `count` items, of which `items` may have
/// only some.
template <typename Items, typename ToText>
void AddDetails(const Items& items, size_t count, Finding& finding, const ToText& to_text) {
  for (const auto& item : items | std::views::take(kMaxDetails)) {
    finding.details.push_back(to_text(item));
  }
  if (count > kMaxDetails)
    finding.details.push_back(fmt::format("and {} more", count - kMaxDetails));
}

Finding BadValues(const core::BadStart& start, std::string_view topic, std::string_view name) {
  Finding finding{.topic = topic, .level = Finding::Level::kBad, .step = start.step};
  if (start.is_first) {
    finding.title =
        fmt::format("{} {} at step {}, the first one with statistics, in {}.", name,
                    name == "NaN" ? "is present" : "are present", start.step, WhereText(start));
    if (topic == "inf") finding.level = Finding::Level::kInfo;
  } else if (start.is_known_before) {
    finding.title = fmt::format("{} began at step {} in {}.", name, start.step, WhereText(start));
  } else {
    finding.title = fmt::format("{} {} present at step {} in {}.", name,
                                name == "NaN" ? "is" : "are", start.step, WhereText(start));
    finding.text = "It may have begun earlier, at a step without statistics of these tensors. ";
  }
  if (!start.is_exact && !start.is_first && start.is_known_before) {
    finding.text = fmt::format(
        "It may have begun after step {}: statistics of the steps between "
        "were not recorded or not examined. ",
        start.step_before);
  }
  finding.text +=
      fmt::format("At the last step, {} of {} with statistics have such values.",
                  GroupedCount(start.tensors_at_end), Plural(start.tensors_with_values, "tensor"));
  if (start.tensor_count == 1) return finding;
  AddDetails(start.tensors, start.tensor_count, finding, [](const core::BadTensor& tensor) {
    return fmt::format("{}: {}", ShortName(tensor.fqn), Plural(tensor.values, "value"));
  });
  return finding;
}

void AddBadValues(const Report& report, std::vector<Finding>& findings) {
  if (report.nans) findings.push_back(BadValues(*report.nans, "nan", "NaN"));
  if (report.infs) findings.push_back(BadValues(*report.infs, "inf", "Infinities"));
  if (report.examined_steps == 0) return;
  if (report.steps_with_unknown_values > 0) {
    const bool has_others = report.nans || report.infs;
    findings.push_back(
        {.topic = "nan",
         .level = Finding::Level::kInfo,
         .title = fmt::format("It is not known whether there are {}NaN or infinities.",
                              has_others ? "further " : ""),
         .text = fmt::format(
             "{} of {} that were examined {} tensors without statistics{}. kv-admin statistics "
             "computes what a save with statistics=True records.",
             GroupedCount(report.steps_with_unknown_values), Plural(report.examined_steps, "step"),
             report.steps_with_unknown_values == 1 ? "has" : "have",
             report.tensors_without_statistics == 0
                 ? ""
                 : fmt::format(", the last one {}",
                               GroupedCount(report.tensors_without_statistics)))});
    return;
  }
  if (report.nans || report.infs) return;
  findings.push_back({.topic = "nan",
                      .level = Finding::Level::kGood,
                      .title = "There are no NaN and no infinities in the recorded statistics.",
                      .text = fmt::format("{} of {} that were examined have statistics.",
                                          GroupedCount(report.steps_with_statistics),
                                          Plural(report.examined_steps, "step"))});
}

void AddGrowth(const Report& report, std::vector<Finding>& findings) {
  if (!report.phase || report.phase->first_step == report.phase->last_step) return;
  const core::ReportPhase& phase = *report.phase;
  const std::string steps = fmt::format("from step {} to {}", phase.first_step, phase.last_step);
  if (!report.growth) {
    findings.push_back(
        {.topic = "growth",
         .title = fmt::format("The checkpoint does not grow {}.", steps),
         .text = fmt::format("Each step has {}.", HumanBytes(report.modules[0].logical_bytes))});
    return;
  }
  const core::ReportGrowth& growth = *report.growth;
  const uint64_t own = growth.last_bytes - growth.first_bytes;
  findings.push_back(
      {.topic = "growth",
       .level = growth.total_growth * 10 > report.modules[0].logical_bytes
                    ? Finding::Level::kWarning
                    : Finding::Level::kInfo,
       .title = growth.module == 0
                    ? fmt::format("The checkpoint grows by {} {}, in several parts.",
                                  HumanBytes(growth.total_growth), steps)
                    : fmt::format("{} grows from {} at step {} to {} at step {}.",
                                  ModulePath(report, growth.module), HumanBytes(growth.first_bytes),
                                  phase.first_step, HumanBytes(growth.last_bytes), phase.last_step),
       .text = growth.module == 0
                   ? ""
                   : fmt::format("This is {} of the growth of the checkpoint.",
                                 Percent(std::min(own, growth.total_growth), growth.total_growth)),
       .module = growth.module});
}

/// The topmost modules of which all bytes satisfy a condition.
template <typename IsWhole>
std::vector<size_t> TopModules(const Report& report, const IsWhole& is_whole) {
  std::vector<size_t> found;
  std::vector<bool> is_inside(report.modules.size());
  for (size_t i = 0; i < report.modules.size(); ++i) {
    const ReportModule& module = report.modules[i];
    if (i > 0 && is_inside[module.parent]) {
      is_inside[i] = true;
    } else if (module.logical_bytes > 0 && is_whole(module)) {
      is_inside[i] = true;
      found.push_back(i);
    }
  }
  return found;
}

/// Modules, of which those with consecutive numbers are joined: "model.layers.0 to 5".
struct ModuleGroup {
  std::string text;
  uint64_t bytes = 0;
};
std::vector<ModuleGroup> GroupModules(const Report& report, const std::vector<size_t>& modules) {
  std::map<std::pair<size_t, uint64_t>, size_t> numbered;  // by parent and number
  std::vector<ModuleGroup> groups;
  for (const size_t i : modules) {
    const ReportModule& module = report.modules[i];
    if (const auto number = ParseWhole<uint64_t>(module.name)) {
      numbered[{module.parent, *number}] = i;
    } else {
      groups.push_back({ModulePath(report, i), module.logical_bytes});
    }
  }
  for (auto first = numbered.begin(); first != numbered.end();) {
    auto last = first;
    uint64_t bytes = report.modules[first->second].logical_bytes;
    auto next = std::next(first);
    while (next != numbered.end() && next->first.first == last->first.first &&
           next->first.second == last->first.second + 1) {
      bytes += report.modules[next->second].logical_bytes;
      last = next++;
    }
    std::string text = ModulePath(report, first->second);
    if (last != first) text += fmt::format(" to {}", last->first.second);
    groups.push_back({std::move(text), bytes});
    first = next;
  }
  std::ranges::stable_sort(groups, std::ranges::greater(), &ModuleGroup::bytes);
  return groups;
}

std::string GroupsText(const std::vector<ModuleGroup>& groups, size_t limit) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(limit, groups.size()); ++i) texts.push_back(groups[i].text);
  std::string text = fmt::to_string(fmt::join(texts, ", "));
  if (groups.size() > limit) text += fmt::format(" and {} more", groups.size() - limit);
  return text;
}

void AddUnchanged(const Report& report, std::vector<Finding>& findings) {
  if (!report.phase || report.phase->reference_step == report.phase->last_step) return;
  const core::ReportPhase& phase = *report.phase;
  const ReportModule& root = report.modules[0];
  const std::string since = phase.has_base
                                ? fmt::format("step {}, the base of the steps from {} on",
                                              phase.reference_step, phase.first_step)
                                : fmt::format("step {}", phase.reference_step);
  if (root.unchanged_bytes == 0) {
    findings.push_back(
        {.topic = "unchanged",
         .title = fmt::format("Everything has changed at least once since {}.", since)});
    return;
  }
  const auto unchanged = TopModules(
      report, [](const ReportModule& m) { return m.unchanged_bytes == m.logical_bytes; });
  const auto changed =
      TopModules(report, [](const ReportModule& m) { return m.unchanged_bytes == 0; });
  const auto groups = GroupModules(report, unchanged);
  Finding finding{.topic = "unchanged",
                  .title = fmt::format("{} of the bytes have not changed since {}{}{}.",
                                       Percent(root.unchanged_bytes, root.logical_bytes), since,
                                       groups.empty() ? "" : ": ", GroupsText(groups, 6))};
  AddDetails(groups, groups.size(), finding, [](const ModuleGroup& group) {
    return fmt::format("{}: {}", group.text, HumanBytes(group.bytes));
  });
  if (!changed.empty() && root.unchanged_bytes < root.logical_bytes) {
    finding.text = fmt::format("What changed: {}.", GroupsText(GroupModules(report, changed), 6));
  }
  findings.push_back(std::move(finding));
}

void AddHealth(const Report& report, std::vector<Finding>& findings) {
  if (report.problem_count == 0) {
    if (report.steps.empty()) return;
    findings.push_back(
        {.topic = "health",
         .level = Finding::Level::kGood,
         .title = "No damage was found.",
         .text = fmt::format("The {} could be read, and {} have the recorded lengths. Payload was "
                             "not read; kv-dump verify checks every byte.",
                             Plural(report.examined_steps, "examined step"),
                             Plural(report.space.segments.size(), "segment"))});
    return;
  }
  Finding finding{
      .topic = "health",
      .level = Finding::Level::kBad,
      .title = fmt::format("{} found in the store.",
                           Plural(report.problem_count, "problem was", "problems were")),
      .text =
          "kv-dump verify lists everything that is lost; kv-admin repair and "
          "kv-admin rebuild use what is left."};
  for (size_t i = 0; i < std::min(report.problems.size(), kMaxDetails); ++i) {
    finding.details.emplace_back(FirstBytes(EscapeText(report.problems[i].ToString()), 500));
  }
  findings.push_back(std::move(finding));
}

void AddSpace(const Report& report, std::vector<Finding>& findings) {
  const core::ReportSpace& space = report.space;
  if (space.file_bytes + space.unused_file_bytes == 0) return;
  const uint64_t dead = space.payload_bytes - std::min(space.payload_bytes, space.live_bytes);
  uint64_t logical = 0;
  for (const kv::StepInfo& step : report.steps) logical += step.logical_bytes;
  const bool is_much = dead * 4 > space.file_bytes && dead > (64 << 20);
  std::string text =
      dead == 0 ? "Steps use all of it."
                : fmt::format("At most {} could be freed with kv-admin compact.", HumanBytes(dead));
  if (space.unused_files > 0) {
    text +=
        fmt::format(" {} of deleted or unfinished steps {} {}.", Plural(space.unused_files, "file"),
                    space.unused_files == 1 ? "has" : "have", HumanBytes(space.unused_file_bytes));
  }
  findings.push_back(
      {.topic = "space",
       .level = is_much ? Finding::Level::kWarning : Finding::Level::kInfo,
       .title = fmt::format("{} of checkpoints take {} in {}.", HumanBytes(logical),
                            HumanBytes(space.file_bytes), Plural(space.segments.size(), "segment")),
       .text = std::move(text)});
}

}  // namespace

std::string ShortName(std::string_view name) {
  const auto bytes_in_page = [](std::string_view text) {
    uint32_t bytes = 0;
    for (const char c : text) {
      bytes += std::string_view("<>&").contains(c)    ? 6
               : std::string_view("\"\\").contains(c) ? 2
                                                      : 1;
    }
    return bytes;
  };
  return CutMiddle(EscapeText(name), kMaxNameBytes, bytes_in_page);
}

std::string ModulePath(const core::Report& report, size_t module) {
  std::vector<std::string> names;
  bool is_rest = report.modules[module].is_rest;
  if (is_rest) module = report.modules[module].parent;
  for (; module != 0; module = report.modules[module].parent) {
    names.insert(names.begin(), report.modules[module].name);
  }
  std::string path = ShortName(fmt::to_string(fmt::join(names, ".")));
  if (!is_rest) return path.empty() ? "(all)" : path;
  return path.empty() ? "the smaller modules" : "the smaller parts of " + path;
}

Json FindingsJson(const core::Report& report) {
  std::vector<Finding> findings;
  if (report.steps.empty()) findings.push_back({.title = "The store has no steps yet."});
  AddBadValues(report, findings);
  AddGrowth(report, findings);
  AddUnchanged(report, findings);
  AddHealth(report, findings);
  AddSpace(report, findings);
  std::ranges::stable_sort(findings, {}, [](const Finding& finding) {
    return std::min(finding.level, Finding::Level::kGood);
  });
  constexpr const char* kLevels[] = {"bad", "warning", "good", "info"};
  Json list = Json::array();
  for (const Finding& finding : findings) {
    Json& json = list.emplace_back(Json{{"topic", finding.topic},
                                        {"level", kLevels[static_cast<size_t>(finding.level)]},
                                        {"title", finding.title},
                                        {"text", finding.text},
                                        {"details", finding.details}});
    if (finding.module) json["module"] = *finding.module;
    if (finding.step) json["step"] = *finding.step;
  }
  return list;
}

}  // namespace cairn::tools
