#include "kv/copy_steps.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kv/base/step_info.h"
#include "kv/maintain/internal/step_copy.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/features.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv {
namespace {

using internal::CommittedRoot;
using internal::StoreAccess;
using internal::StoreState;

/// Returns the steps to copy, ascending. kNotFound: one of them does not exist.
Result<std::vector<StepInfo>> FindSteps(const Snapshot& source, std::vector<uint64_t> numbers) {
  std::ranges::sort(numbers);
  numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
  std::vector<StepInfo> steps;
  for (const uint64_t number : numbers) {
    CAIRN_TRY_ASSIGN(StepInfo step, source.FindStep(number));
    steps.push_back(std::move(step));
  }
  return steps;
}

/// Copies steps of a source that others change in the meantime.
class Copies {
 public:
  Copies(Store& source, std::shared_ptr<const CommittedRoot> root, StoreState& target,
         const CopyOptions& options)
      : source_(source), options_(options), copier_(*View(std::move(root)), target, options) {}

  Result<CopiedStep> Copy(StepInfo step) {
    for (int attempt = 1;; ++attempt) {
      auto copied = copier_.Copy(step);
      if (copied || copied.error().code != ErrorCode::kNotFound) return copied;
      // The newest root that the source knows is the snapshot's root, or a newer one.
      const auto latest = source_.Latest();
      if (!latest) return std::unexpected(copied.error());
      const auto found = (*latest)->FindStep(step.step);
      if (!found && found.error().code != ErrorCode::kNotFound) return copied;
      if (!found || found->generation != step.generation) {
        return CopiedStep{.step = options_.into.value_or(step.step),
                          .outcome = CopiedStep::Outcome::kDeleted};
      }
      if (found->HasRecordsOf(step) || attempt == kMaxAttempts) return copied;
      step = *found;  // a compaction has rewritten it
      const auto newer = internal::CurrentRoot(StoreAccess::StateOf(source_));
      CAIRN_TRY(internal::CheckCanWrite(newer->root.features, source_.storage().address()));
      copier_.UseSource(*View(newer));
    }
  }
  /// Keeps finished segments for the next copier, which copies them again if this fails.
  Result<void> KeepFinished() { return copier_.KeepFinished(); }

 private:
  static constexpr int kMaxAttempts = 8;

  const internal::SnapshotState* View(std::shared_ptr<const CommittedRoot> root) {
    view_ =
        std::make_unique<internal::SnapshotState>(StoreAccess::StateOf(source_), std::move(root));
    return view_.get();
  }

  Store& source_;
  const CopyOptions& options_;
  std::unique_ptr<internal::SnapshotState> view_;  // the view that the copier uses
  internal::StepCopier copier_;
};

}  // namespace

Result<CopyReport> CopySteps(Store& source, Store& target, const CopyOptions& options) {
  CAIRN_TRY_ASSIGN(const auto snapshot, source.Latest());
  CAIRN_TRY_ASSIGN(const std::vector<StepInfo> steps, FindSteps(*snapshot, options.steps));
  if (options.into && steps.size() != 1) {
    return Fail(ErrorCode::kInvalidArgument, "only one step can be copied to another number");
  }
  const auto root =
      internal::CurrentRoot(StoreAccess::StateOf(source));  // that of the snapshot, or a newer one
  // The target does not list the features of the source, which its records may need.
  const std::string& source_address = source.storage().address();
  CAIRN_TRY(internal::CheckCanWrite(StoreAccess::StateOf(source).features, source_address));
  CAIRN_TRY(internal::CheckCanWrite(root->root.features, source_address));
  StoreState& state = StoreAccess::StateOf(target);
  CAIRN_TRY_ASSIGN(const auto turn,
                   internal::Turn::Take(state, state.step_writer_alive, "copy steps to it",
                                        "a save or another copy of the target is still running; "
                                        "wait for it"));
  Copies copies(source, root, state, options);
  CopyReport report;
  for (const StepInfo& step : steps) {
    auto copied = copies.Copy(step);
    if (!copied) {
      const auto kept = copies.KeepFinished();
      Error error = internal::ExplainFailure(state, std::move(copied).error());
      // The target must be opened again.
      if (!kept && state.outcome_unknown) error.message += "; " + kept.error().message;
      return Fail(std::move(error).WithStep(step.step));
    }
    report.steps.push_back(*copied);
  }
  return report;
}

}  // namespace cairn::kv
