#include "kv/base/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <ranges>
#include <set>

namespace cairn::kv {
namespace {

/// Returns the value of the metric; nothing if the step has none that can be compared.
std::optional<double> ValueOf(const StepInfo& step, const std::string& name) {
  const auto found = std::ranges::find(step.metrics, name, &Metric::name);
  if (found == step.metrics.end() || std::isnan(found->value)) return std::nullopt;
  return found->value;
}

/// Adds the best steps. If two are equal, the later one is better.
void AddBest(const KeepBest& best, std::span<const StepInfo> steps, std::set<uint64_t>& kept) {
  std::vector<std::pair<double, uint64_t>> values;
  for (const StepInfo& step : steps) {
    const auto value = ValueOf(step, best.metric);
    if (value) values.emplace_back(best.highest ? *value : -*value, step.step);
  }
  std::ranges::sort(values, std::ranges::greater());
  values.resize(std::min<size_t>(values.size(), best.count));
  for (const auto& [value, step] : values) kept.insert(step);
}

}  // namespace

Result<KeepBest> ParseKeepBest(std::string_view text) {
  const auto fail = [&] {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' does not name the best steps; write METRIC:N for the lowest values "
                    "or METRIC:N:max for the highest",
                    text));
  };
  KeepBest best;
  std::string_view rest = text;
  if (rest.ends_with(":max")) {
    best.highest = true;
    rest.remove_suffix(4);
  } else if (rest.ends_with(":min")) {
    rest.remove_suffix(4);
  }
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return fail();
  const char* const end = rest.data() + rest.size();
  const auto parsed = std::from_chars(rest.data() + colon + 1, end, best.count);
  if (parsed.ec != std::errc() || parsed.ptr != end || best.count == 0) return fail();
  best.metric = rest.substr(0, colon);
  return best;
}

std::string FormatKeepBest(const KeepBest& best) {
  return fmt::format("{}:{}{}", best.metric, best.count, best.highest ? ":max" : "");
}

Result<void> CheckRetention(const RetentionPolicy& policy) {
  if (policy.keep_best.size() > kMaxKeepBest) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a policy has at most {} metrics", kMaxKeepBest));
  }
  for (const KeepBest& best : policy.keep_best) {
    if (best.count == 0) return Fail(ErrorCode::kInvalidArgument, "keep_best keeps no step");
    CAIRN_TRY(CheckAnnotations({{.name = best.metric, .value = 0}}, "", {}));
  }
  return {};
}

std::optional<uint64_t> LaterThanSaved(const StepInfo& saved, std::span<const uint64_t> numbers) {
  if (!saved.parent || saved.parent->step < saved.step) return std::nullopt;
  const uint64_t above = *std::prev(std::ranges::upper_bound(numbers, saved.parent->step));
  return above > saved.step ? std::optional(above) : std::nullopt;
}

std::optional<uint64_t> LatestOf(std::span<const StepInfo> steps) {
  if (steps.empty()) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const StepInfo& step : steps) numbers.push_back(step.step);
  auto latest = std::ranges::max_element(
      steps, {}, [](const StepInfo& step) { return std::pair(step.created_unix_ns, step.step); });
  while (const auto later = LaterThanSaved(*latest, numbers)) {
    latest = std::ranges::lower_bound(steps, *later, {}, &StepInfo::step);
  }
  return latest->step;
}

std::vector<uint64_t> LineOf(std::span<const StepInfo> steps, uint64_t end) {
  std::vector<uint64_t> line;
  uint64_t below = end;  // the next one is not higher
  int64_t created_unix_ns = std::numeric_limits<int64_t>::max();
  for (const StepInfo& step : steps | std::views::reverse) {
    if (step.step > below || step.created_unix_ns > created_unix_ns) continue;
    line.push_back(step.step);
    if (step.step == 0) break;
    below = step.step - 1;
    if (step.parent) below = std::min(below, step.parent->step);
    created_unix_ns = step.created_unix_ns;
  }
  return line;
}

std::vector<uint64_t> StepsToDelete(const RetentionPolicy& policy, std::span<const StepInfo> steps,
                                    const Tags& tags, uint64_t latest, bool keeps_latest) {
  std::set<uint64_t> kept;
  for (const auto& [tag, step] : tags) kept.insert(step);
  for (const KeepBest& best : policy.keep_best) AddBest(best, steps, kept);
  std::vector<uint64_t> line = LineOf(steps, latest);
  line.resize(std::min<uint64_t>(line.size(), policy.keep_last));
  kept.insert(line.begin(), line.end());
  uint64_t left = policy.keep_last;
  for (const StepInfo& step : steps | std::views::reverse) {
    if (left == 0) break;
    if (step.step > latest) continue;
    kept.insert(step.step);
    --left;
  }
  if (keeps_latest) kept.insert(latest);
  std::vector<uint64_t> doomed;
  for (const StepInfo& step : steps) {
    if (step.step > latest) break;
    const bool is_multiple = policy.keep_every > 0 && step.step % policy.keep_every == 0;
    if (!is_multiple && !kept.contains(step.step)) doomed.push_back(step.step);
  }
  return doomed;
}

}  // namespace cairn::kv
