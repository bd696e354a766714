#include "kv/copy_steps.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "kv/internal/commit/root_change.h"
#include "kv/internal/commit/store_state.h"
#include "kv/internal/copy/step_copy.h"
#include "kv/internal/snapshot_state.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"

namespace cairn::kv {
namespace {

using internal::StoreState;

/// Makes other attempts to write to the store fail while it exists.
class WriterTurn {
 public:
  static Result<std::unique_ptr<WriterTurn>> Take(StoreState& state) {
    const auto fail = [&](const char* message) {
      return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                        .message = message,
                        .file = state.storage->address()});
    };
    if (!state.writable) return fail("the target is open for reading only");
    CAIRN_TRY(internal::CheckCanCommit(state));
    CAIRN_TRY(internal::CheckStillWriter(state));
    if (state.step_writer_alive.exchange(true)) {
      return fail("a save or another copy of the target is still running; wait for it");
    }
    return std::unique_ptr<WriterTurn>(new WriterTurn(state));
  }
  ~WriterTurn() { state_.step_writer_alive = false; }

 private:
  explicit WriterTurn(StoreState& state) : state_(state) {}
  StoreState& state_;
};

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

/// Returns whether the source has deleted or replaced the step.
bool IsDeleted(const Store& source, const StepInfo& step) {
  const auto latest = source.Latest();
  if (!latest) return false;
  const auto found = (*latest)->FindStep(step.step);
  if (found) return found->generation != step.generation;
  return found.error().code == ErrorCode::kNotFound;
}

}  // namespace

Result<CopyReport> CopySteps(Store& source, Store& target, const CopyOptions& options) {
  CAIRN_TRY_ASSIGN(const auto snapshot, source.Latest());
  CAIRN_TRY_ASSIGN(const std::vector<StepInfo> steps, FindSteps(*snapshot, options.steps));
  if (options.into && steps.size() != 1) {
    return Fail(ErrorCode::kInvalidArgument, "only one step can be copied to another number");
  }
  // The newest root that the source knows is that of the snapshot, or a newer one.
  const internal::SnapshotState contents(*source.state(), internal::CurrentRoot(*source.state()));
  CAIRN_TRY_ASSIGN(const auto turn, WriterTurn::Take(*target.state()));
  internal::StepCopier copier(contents, *target.state(), options);
  CopyReport report;
  for (const StepInfo& step : steps) {
    auto copied = copier.Copy(step);
    if (copied) {
      report.steps.push_back(*copied);
    } else if (copied.error().code == ErrorCode::kNotFound && IsDeleted(source, step)) {
      report.steps.push_back(
          {.step = options.into.value_or(step.step), .outcome = CopiedStep::Outcome::kDeleted});
    } else {
      (void)copier.KeepFinished();  // if this fails, the next copy begins again
      return Fail(std::move(copied).error().WithStep(step.step));
    }
  }
  return report;
}

}  // namespace cairn::kv
