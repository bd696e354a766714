#include "kv/base/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <ranges>
#include <set>
#include <unordered_map>
#include <utility>

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

bool IsParent(const StepInfo& step, const StepInfo& child) {
  if (!child.parent) return false;
  if (step.attempt == child.parent->attempt) return true;
  const bool is_edit_of_itself = step.base_step == step.step;
  return step.step == child.parent->step && is_edit_of_itself &&
         step.created_unix_ns <= child.created_unix_ns;
}

namespace {

constexpr auto kSavedAt = [](const StepInfo& step) {
  return std::pair(step.created_unix_ns, step.step);
};

class Parents {
 public:
  /// `steps`, ascending, outlive it.
  explicit Parents(std::span<const StepInfo> steps) : steps_(steps) {
    for (size_t i = 0; i < steps.size(); ++i) by_attempt_.try_emplace(steps[i].attempt, i);
  }

  /// Returns the index of the parent of a step, if it exists.
  std::optional<size_t> Find(const StepInfo& child) const {
    if (!child.parent) return std::nullopt;
    const auto same = std::ranges::lower_bound(steps_, child.parent->step, {}, &StepInfo::step);
    if (same != steps_.end() && IsParent(*same, child)) {
      return static_cast<size_t>(same - steps_.begin());
    }
    const auto found = by_attempt_.find(child.parent->attempt);  // a copy has another number
    return found == by_attempt_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const std::span<const StepInfo> steps_;
  std::unordered_map<std::string_view, size_t> by_attempt_;
};

}  // namespace

std::optional<uint64_t> LatestOf(std::span<const StepInfo> steps) {
  if (steps.empty()) return std::nullopt;
  auto latest = std::ranges::max_element(steps, {}, kSavedAt);
  if (!IsBelowParent(*latest)) return latest->step;
  const Parents parents(steps);
  while (IsBelowParent(*latest)) {
    const auto parent = parents.Find(*latest);
    if (parent && steps[*parent].step > latest->step) {
      latest = steps.begin() + static_cast<ptrdiff_t>(*parent);
      continue;
    }
    const auto end = std::ranges::lower_bound(steps, latest->parent->step, {}, &StepInfo::step);
    if (end <= latest + 1) break;
    latest = std::max_element(latest + 1, end, [](const StepInfo& a, const StepInfo& b) {
      return kSavedAt(a) < kSavedAt(b);
    });
  }
  return latest->step;
}

std::vector<uint64_t> LineOf(std::span<const StepInfo> steps, uint64_t end) {
  const auto after = std::ranges::upper_bound(steps, end, {}, &StepInfo::step);
  if (after == steps.begin()) return {};
  const Parents parents(steps);
  std::vector<const StepInfo*> saved;  // the last one first; the line continues in this order
  for (const StepInfo& step : steps) saved.push_back(&step);
  std::ranges::sort(saved, std::ranges::greater(),
                    [](const auto* step) { return kSavedAt(*step); });
  std::vector<uint64_t> line;
  for (auto at = std::ranges::find(saved, &*std::prev(after)); at != saved.end();) {
    const StepInfo& step = **at;
    line.push_back(step.step);
    const auto parent = parents.Find(step);
    if (parent && steps[*parent].step < step.step) {
      const auto next = std::find(at + 1, saved.end(), &steps[*parent]);
      if (next != saved.end()) {
        at = next;
        continue;
      }
    }
    const uint64_t limit = step.parent ? std::min(step.step, step.parent->step) : step.step;
    const auto is_next = [&](const StepInfo* other) {
      return other->step < limit && !(IsBelowParent(*other) && other->parent->step < limit);
    };
    at = std::find_if(at + 1, saved.end(), is_next);
  }
  return line;
}

bool LacksMetrics(const RetentionPolicy& policy, std::span<const StepInfo> steps) {
  if (policy.keep_last > 0 || policy.keep_every > 0 || policy.keep_best.empty()) return false;
  return std::ranges::none_of(policy.keep_best, [&](const KeepBest& best) {
    return std::ranges::any_of(
        steps, [&](const StepInfo& step) { return ValueOf(step, best.metric).has_value(); });
  });
}

std::vector<uint64_t> StepsToDelete(const RetentionPolicy& policy, std::span<const StepInfo> steps,
                                    const Tags& tags, uint64_t latest, bool keeps_latest) {
  if (LacksMetrics(policy, steps)) return {};
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
