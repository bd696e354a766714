#include "kv/base/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
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

std::vector<uint64_t> StepsToDelete(const RetentionPolicy& policy, std::span<const StepInfo> steps,
                                    const Tags& tags, std::optional<uint64_t> newest) {
  std::set<uint64_t> kept;
  for (const auto& [tag, step] : tags) kept.insert(step);
  for (const KeepBest& best : policy.keep_best) AddBest(best, steps, kept);
  const auto older_end =
      newest ? std::ranges::lower_bound(steps, *newest, {}, &StepInfo::step) : steps.end();
  const std::span older = steps.first(static_cast<size_t>(older_end - steps.begin()));
  // The newest step is one of the last, too.
  const uint64_t last = policy.keep_last - (newest && policy.keep_last > 0 ? 1 : 0);
  const size_t first_recent = older.size() - std::min<size_t>(older.size(), last);
  std::vector<uint64_t> doomed;
  for (const StepInfo& step : older.first(first_recent)) {
    const bool is_multiple = policy.keep_every > 0 && step.step % policy.keep_every == 0;
    if (!is_multiple && !kept.contains(step.step)) doomed.push_back(step.step);
  }
  return doomed;
}

}  // namespace cairn::kv
