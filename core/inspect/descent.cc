#include "core/inspect/descent.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "kv/base/retention.h"

namespace cairn::core {

Descent FindDescent(std::span<const kv::StepInfo> steps) {
  Descent descent{.parents = std::vector<std::optional<size_t>>(steps.size()), .absent = {}};
  std::unordered_map<std::string_view, size_t> by_attempt;
  std::unordered_map<uint64_t, size_t> by_number;
  for (size_t i = 0; i < steps.size(); ++i) {
    by_attempt.try_emplace(steps[i].attempt, i);
    by_number.try_emplace(steps[i].step, i);
  }
  std::vector<bool> has_child(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& parent = steps[i].parent;
    if (!parent) continue;
    const auto same = by_number.find(parent->step);
    if (same != by_number.end() && kv::IsParent(steps[same->second], steps[i])) {
      descent.parents[i] = same->second;
      has_child[same->second] = true;
      continue;
    }
    const auto [found, is_absent] =
        by_attempt.try_emplace(parent->attempt, steps.size() + descent.absent.size());
    if (is_absent) descent.absent.push_back({.step = parent->step, .before = {}});
    descent.parents[i] = found->second;
    if (found->second < steps.size()) has_child[found->second] = true;
  }
  std::vector<size_t> order(steps.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t i) {
    return std::tuple(steps[i].run, steps[i].created_unix_ns, steps[i].step);
  });
  std::vector<bool> is_seen(descent.absent.size());
  for (size_t k = 0; k < order.size(); ++k) {
    const auto parent = descent.parents[order[k]];
    if (!parent || *parent < steps.size() || is_seen[*parent - steps.size()]) continue;
    is_seen[*parent - steps.size()] = true;
    AbsentParent& absent = descent.absent[*parent - steps.size()];
    if (k == 0 || !steps[order[k]].run || steps[order[k - 1]].run != steps[order[k]].run) continue;
    if (steps[order[k - 1]].step < absent.step && !has_child[order[k - 1]]) {
      absent.before = order[k - 1];
    }
  }
  return descent;
}

LineOfSteps FindLine(std::span<const kv::StepInfo> steps, size_t last) {
  const Descent descent = FindDescent(steps);
  LineOfSteps line;
  std::vector<bool> is_in_line(steps.size());  // the records of a hostile store may have cycles
  for (std::optional<size_t> at = last; at && !is_in_line[*at];) {
    is_in_line[*at] = true;
    line.steps.push_back(steps[*at]);
    at = descent.parents[*at];
    if (!at || *at < steps.size()) continue;
    const AbsentParent& absent = descent.absent[*at - steps.size()];
    line.absent.push_back(absent.step);
    at = absent.before;
  }
  std::ranges::reverse(line.steps);
  std::ranges::reverse(line.absent);
  return line;
}

}  // namespace cairn::core
