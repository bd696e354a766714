#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Chooses the steps that remain when a store is pruned. Threads: all functions here are pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"

namespace cairn::kv {

/// The steps with the best values of one metric.
struct KeepBest {
  friend bool operator==(const KeepBest&, const KeepBest&) = default;
  std::string metric;
  uint64_t count = 1;
  bool highest = false;  // the highest values are the best; otherwise the lowest
};

/// The largest number of metrics in a policy that a store keeps.
inline constexpr size_t kMaxKeepBest = 64;

/// A step remains if any of these keeps it.
struct RetentionPolicy {
  friend bool operator==(const RetentionPolicy&, const RetentionPolicy&) = default;
  uint64_t keep_last = 0;   // the newest ones on a line
  uint64_t keep_every = 0;  // the multiples of this number; 0: none
  std::vector<KeepBest>
      keep_best;  // a step without the metric, or where it is NaN, is none of these

  bool keeps_any() const { return keep_last > 0 || keep_every > 0 || !keep_best.empty(); }
};

/// Parses METRIC:N or METRIC:N:max. kInvalidArgument: it is neither, or N is 0.
Result<KeepBest> ParseKeepBest(std::string_view text);

/// Formats the best steps as ParseKeepBest parses them.
std::string FormatKeepBest(const KeepBest& best);

/// kInvalidArgument: the policy cannot be kept in a store: it has more than kMaxKeepBest metrics,
/// or one has an impossible name or keeps no step.
Result<void> CheckRetention(const RetentionPolicy& policy);

/// Returns whether `child` continued from `step`, or from one that an edit of itself has replaced
/// by `step`, such as one that puts records of applications.
bool IsParent(const StepInfo& step, const StepInfo& child);

/// Returns whether a step has not a higher number than its parent, as an old checkpoint that is
/// imported.
inline bool IsBelowParent(const StepInfo& step) {
  return step.parent && step.parent->step >= step.step;
}

/// Returns the latest of `steps`, all steps of a store, ascending; nothing if there are none. It is
/// the one that was saved last, unless it is below its parent: then it is that parent, or, if that
/// does not exist any more, the one between them that was saved last. Edits and merges count as
/// saved when their source was.
std::optional<uint64_t> LatestOf(std::span<const StepInfo> steps);

/// Returns `end`, or, if it does not exist, the highest step below it, and the steps on its line,
/// each followed by its parent, or, if that does not exist any more or has not a lower number, by
/// the one that was saved last of those that are lower than both and were not saved later. Steps
/// from which a run has gone back to a lower one are not among them. `steps` are all steps of a
/// store, ascending.
std::vector<uint64_t> LineOf(std::span<const StepInfo> steps, uint64_t end);

/// Returns whether the policy chooses by metrics only, and no step has a value of one of them that
/// can be compared, such as if the name is wrong or a run has diverged.
bool LacksMetrics(const RetentionPolicy& policy, std::span<const StepInfo> steps);

/// Returns the steps, ascending, that neither the policy nor a tag keeps; none if LacksMetrics.
/// `steps` are all steps of a store, ascending. The last ones are those on the line of `latest`,
/// and as many of the highest ones up to it: of a run that has gone back, both lines remain for a
/// while. Higher steps remain. So does `latest`, with `keeps_latest`.
std::vector<uint64_t> StepsToDelete(const RetentionPolicy& policy, std::span<const StepInfo> steps,
                                    const Tags& tags, uint64_t latest, bool keeps_latest);

}  // namespace cairn::kv
