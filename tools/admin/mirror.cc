// `kv-admin mirror`: copies all steps that another store lacks, once or continuously.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tools/admin/copy.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

struct MirrorCommand {
  CopyCommand copy;
  bool follow = false;
  double interval_seconds = 10;  // between two searches for new steps, if no change is noticed
  bool prune = false;            // delete the steps of `to` that `from` does not have
  bool dry_run = false;
};

constexpr std::chrono::milliseconds kWaitSlice{200};  // after which a signal is noticed
/// Number of newest steps that are compared by generation in each round. Older steps are compared
/// only in the first round: their entries are not in the root.
constexpr size_t kComparedSteps = 64;

/// Returns the steps of `to` that `source` lacks. kFailedPrecondition: `source` has no steps.
Result<std::vector<uint64_t>> PrunedSteps(const kv::Snapshot& source, const kv::Store& to) {
  CAIRN_TRY_ASSIGN(const auto snapshot, to.Latest());
  const std::vector<uint64_t>& kept = source.step_numbers();
  if (kept.empty() && !snapshot->step_numbers().empty()) {
    return Fail(
        Error{.code = ErrorCode::kFailedPrecondition,
              .message = "the source has no steps; --prune would delete all steps, so omit it",
              .file = to.directory()});
  }
  std::vector<uint64_t> steps;
  std::ranges::set_difference(snapshot->step_numbers(), kept, std::back_inserter(steps));
  return steps;
}

class Mirror {
 public:
  /// `bytes_per_second` limits all rounds together; 0: no limit.
  Mirror(const MirrorCommand& command, uint64_t bytes_per_second, std::unique_ptr<kv::Store> from,
         std::unique_ptr<kv::Store> to, Output& out)
      : command_(command),
        throttle_(std::make_shared<kv::Throttle>(bytes_per_second)),
        from_(std::move(from)),
        to_(std::move(to)),
        out_(out) {}

  Result<void> Run() {
    while (!CancelRequested()) {
      const auto round = CopyOnce();
      if (!command_.follow) {
        CAIRN_TRY(round);
        break;
      }
      if (!round) {
        if (round.error().code == ErrorCode::kCancelled) break;
        if (round.error().code != ErrorCode::kUnavailable) return round;
        Warn("kv-admin", EscapeText(round.error().ToString()) + "; trying again");
      }
      CAIRN_TRY(out_.Finish());
      Await();
    }
    return to_->Close();
  }

 private:
  Result<void> CopyOnce() {
    CAIRN_TRY_ASSIGN(const auto snapshot, from_->Latest());
    CAIRN_TRY_ASSIGN(std::vector<uint64_t> steps, NewSteps(*snapshot));
    if (!steps.empty() || !command_.follow) {
      CAIRN_TRY_ASSIGN(const TimedCopy copy,
                       CopyWithProgress(*from_, *to_, command_.copy, throttle_, std::move(steps)));
      if (command_.copy.json) {
        out_.WriteLine(JsonLine(CopyJson(*from_, *to_, copy)));
      } else {
        PrintCopy(copy, /*only_new=*/true, out_);
      }
    }
    for (const auto& [step, generation] : compared_) done_[step] = generation;
    return command_.prune ? Prune(*snapshot) : Result<void>();
  }

  /// Returns the steps that were added or replaced since the last round, all of them in the first.
  Result<std::vector<uint64_t>> NewSteps(const kv::Snapshot& snapshot) {
    const std::vector<uint64_t>& numbers = snapshot.step_numbers();
    compared_.clear();
    std::vector<uint64_t> steps;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto done = done_.find(numbers[i]);
      if (done != done_.end() && i + kComparedSteps < numbers.size()) continue;
      CAIRN_TRY_ASSIGN(const kv::StepInfo info, snapshot.FindStep(numbers[i]));
      if (done != done_.end() && done->second == info.generation) continue;
      compared_[info.step] = info.generation;
      steps.push_back(info.step);
    }
    return steps;
  }

  Result<void> Prune(const kv::Snapshot& source) {
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> steps, PrunedSteps(source, *to_));
    if (steps.empty()) return {};
    CAIRN_TRY_ASSIGN(const auto report, to_->Delete(steps));
    if (!command_.copy.json) {
      out_.WriteLine(fmt::format("deleted {}; {}", Plural(report.steps, "step"),
                                 FreedText({report.freed_bytes, report.waiting_bytes})));
    }
    return {};
  }

  /// Waits for a change of the source, at most for the interval.
  void Await() const {
    using Clock = std::chrono::steady_clock;
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(command_.interval_seconds));
    while (!CancelRequested()) {
      const auto begin = Clock::now();
      if (begin >= deadline) return;
      const auto slice = std::min<Clock::duration>(kWaitSlice, deadline - begin);
      from_->AwaitChange(std::chrono::ceil<std::chrono::milliseconds>(slice));
      if (Clock::now() - begin < slice / 2) return;  // a name was put
    }
  }

  const MirrorCommand& command_;
  const std::shared_ptr<kv::Throttle> throttle_;
  const std::unique_ptr<kv::Store> from_;
  const std::unique_ptr<kv::Store> to_;
  Output& out_;
  std::map<uint64_t, uint64_t> done_;      // generations of the steps that were copied
  std::map<uint64_t, uint64_t> compared_;  // generations of the steps of this round
};

/// Prints what a mirror would do. Changes nothing.
Result<void> PrintPlan(const MirrorCommand& command, const kv::Store& from, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.copy.to));
  CAIRN_TRY_ASSIGN(const auto snapshot, from.Latest());
  const auto to = kv::Store::Open(address.store, kv::OpenMode::kRead);
  if (!to && to.error().code != ErrorCode::kNotFound) return std::unexpected(to.error());
  std::vector<uint64_t> present;
  std::vector<uint64_t> pruned;
  if (to) {
    CAIRN_TRY_ASSIGN(const auto contents, (*to)->Latest());
    present = contents->step_numbers();
    if (command.prune) {
      CAIRN_TRY_ASSIGN(pruned, PrunedSteps(*snapshot, **to));
    }
  }
  std::vector<uint64_t> missing;
  std::ranges::set_difference(snapshot->step_numbers(), present, std::back_inserter(missing));
  if (command.copy.json) {
    WriteJson(out, {{"copy", missing}, {"delete", pruned}});
    return {};
  }
  for (const uint64_t step : missing) out.WriteLine(fmt::format("would copy step {}", step));
  for (const uint64_t step : pruned) out.WriteLine(fmt::format("would delete step {}", step));
  return {};
}

/// Copies the steps of `from` that `to` lacks. With `follow`, waits for new ones until SIGINT or
/// SIGTERM, which is a success, and continues after kUnavailable. Other errors: see kv::CopySteps.
/// kFailedPrecondition: `from` has no steps, and `prune` would delete all of `to`.
Result<void> RunMirror(const MirrorCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const StepsAddress address, ParseStepsAddress(command.copy.from));
  if (!address.steps.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a mirror has all steps; write {}, or use push for one step",
                            ShellWord(address.store)));
  }
  CAIRN_TRY_ASSIGN(const uint64_t rate, ParseRate(command.copy.max_rate));
  CAIRN_TRY_ASSIGN(auto from, kv::Store::Open(address.store, kv::OpenMode::kRead));
  if (command.dry_run) return PrintPlan(command, *from, out);
  CAIRN_TRY_ASSIGN(auto to, OpenCopyTarget(command.copy.to));
  return Mirror(command, rate, std::move(from), std::move(to), out).Run();
}

}  // namespace

Verb MirrorVerb() {
  const auto command = std::make_shared<MirrorCommand>();
  const Argument from = Required("FROM", &command->copy.from, "Store whose steps are copied");
  return {.name = "mirror",
          .usage = "mirror FROM TO [--follow]",
          .summary = "Copies all steps that another store lacks, once or continuously",
          .arguments = Joined(
              CopyArguments(command->copy, from),
              {Flag("--follow", command->follow, "Continue with new steps until SIGINT or SIGTERM"),
               Option("--interval", "S", &command->interval_seconds,
                      "Seconds after which --follow searches for new steps, if no change "
                      "of the source was noticed before (10)",
                      std::pair<double, double>(0.1, 86'400)),
               Flag("--prune", command->prune,
                    "Delete the steps of TO that FROM does not have. Otherwise they "
                    "remain"),
               Flag("--dry-run", command->dry_run,
                    "Only print which steps would be copied and deleted")}),
          .examples = {"kv-admin mirror runs/gpt /mnt/archive/gpt",
                       "kv-admin mirror runs/gpt /mnt/archive/gpt --follow --max-rate 200M"},
          .notes = std::string(kCopyNotes) +
                   "\nWith --json, each round of --follow that copies anything prints one line.",
          .run = [command](Output& out) { return StatusOf(RunMirror(*command, out)); }};
}

}  // namespace cairn::tools
