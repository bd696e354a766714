// `kv-admin push`, `pull` and `mirror`: copies of steps in another store.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kv/base/copy_options.h"
#include "kv/base/options.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

using Outcome = kv::CopiedStep::Outcome;

std::string StepLine(const kv::CopiedStep& step) {
  switch (step.outcome) {
    case Outcome::kPresent:
      return fmt::format("step {}: already there", step.step);
    case Outcome::kDeleted:
      return fmt::format("step {}: skipped, it was deleted during the copy", step.step);
    case Outcome::kCopied:
      break;
  }
  std::string line = fmt::format("step {}: copied {} in {}", step.step,
                                 HumanBytes(step.copied_bytes + step.table_bytes),
                                 Plural(step.copied_segments, "segment"));
  if (step.reused_segments > 0) {
    line += fmt::format("; {} already there", Plural(step.reused_segments, "segment"));
  }
  return line;
}

Json StepJson(const kv::CopiedStep& step) {
  constexpr const char* kOutcomes[] = {"copied", "present", "deleted"};
  return {{"step", step.step},
          {"outcome", kOutcomes[static_cast<size_t>(step.outcome)]},
          {"logical_bytes", step.logical_bytes},
          {"copied_segments", step.copied_segments},
          {"copied_bytes", step.copied_bytes},
          {"reused_segments", step.reused_segments},
          {"table_bytes", step.table_bytes}};
}

// --- Copies of named steps, and what mirrors have in common with them

constexpr char kCopyNotes[] =
    "Only segments that TO lacks are transferred. Every page is verified before it is written, "
    "and\n"
    "a step exists in TO completely or not at all. A copy that was interrupted continues where it\n"
    "was when the command is repeated within a day.";

/// `from` and the other arguments of push, pull and mirror.
std::vector<Argument> CopyArguments(CopyCommand& command, Argument from) {
  return {std::move(from),
          Required("TO", &command.to, "Store that receives the steps, created if absent"),
          Option("--threads", "N", &command.threads, "Segments that are copied at once (4)",
                 std::pair<uint64_t, uint64_t>(1, 256)),
          RateArgument(command.max_rate),
          Flag("--overwrite", command.overwrite,
               "Replace steps of TO that have the same number and other contents"),
          JsonArgument(command.json)};
}

/// Opens a store for writing, and creates it if it is absent. kInvalidArgument: a step follows its
/// name.
Result<std::unique_ptr<kv::Store>> OpenCopyTarget(const std::string& to) {
  CAIRN_TRY_ASSIGN(const std::string store,
                   ParseStore(to, "steps are copied to a store, not to a step"));
  return kv::Store::Open(store, kv::OpenMode::kWrite);
}

/// The report of one copy, and its duration.
struct TimedCopy {
  kv::CopyReport report;
  double seconds = 0;

  uint64_t copied_bytes() const {
    uint64_t bytes = 0;
    for (const kv::CopiedStep& step : report.steps) bytes += step.copied_bytes + step.table_bytes;
    return bytes;
  }
};

/// Copies with a progress line. Errors: see kv::CopySteps.
Result<TimedCopy> CopyWithProgress(kv::Store& from, kv::Store& to, const CopyCommand& command,
                                   const std::shared_ptr<kv::Throttle>& throttle,
                                   std::vector<uint64_t> steps, bool skip_lost) {
  ProgressLine line("copying");
  const kv::CopyOptions options{
      .steps = std::move(steps),
      .into = command.into,
      .overwrite = command.overwrite,
      .skip_lost = skip_lost,
      .threads = static_cast<uint32_t>(command.threads),
      .throttle = throttle,
      .progress = [&](const kv::CopyProgress& done) {
        const std::string task = fmt::format("copying step {}:", done.step);
        return line.callback(task, ProgressUnit::kBytes)(done.done_bytes, done.total_bytes);
      }};
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(kv::CopyReport report, kv::CopySteps(from, to, options));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return TimedCopy{.report = std::move(report), .seconds = elapsed.count()};
}

/// Prints one line per step, except for steps that were already there if `only_new`.
void PrintCopy(const TimedCopy& copy, bool only_new, Output& out) {
  for (const kv::CopiedStep& step : copy.report.steps) {
    if (!only_new || step.outcome != Outcome::kPresent) out.WriteLine(StepLine(step));
  }
}

Json CopyJson(const kv::Store& from, const kv::Store& to, const TimedCopy& copy) {
  Json steps = Json::array();
  for (const kv::CopiedStep& step : copy.report.steps) steps.push_back(StepJson(step));
  Json document = {{"from", JsonText(from.directory())},
                   {"to", JsonText(to.directory())},
                   {"copied_bytes", copy.copied_bytes()},
                   {"seconds", copy.seconds}};
  document["steps"] = std::move(steps);
  return document;
}

// --- Mirrors

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
      auto round = OpenTarget();
      if (round) round = CopyOnce();
      if (!command_.follow) {
        CAIRN_TRY(round);
        break;
      }
      if (!round) {
        if (round.error().code == ErrorCode::kCancelled) break;
        // Its own lease, if that could not be removed, expires within a minute.
        const bool is_held = to_ == nullptr && round.error().code == ErrorCode::kConflict;
        if (round.error().code != ErrorCode::kUnavailable && !is_held) return round;
        Warn("kv-admin", EscapeText(round.error().ToString()) + "; trying again");
        reopens_ = true;  // the target accepts no change after one whose outcome is unknown
      }
      CAIRN_TRY(out_.Finish());
      Await();
    }
    if (to_ != nullptr) CAIRN_TRY(to_->Close());
    if (command_.follow || damaged_steps_ == 0) return {};
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("{} not copied, because of damage in the source",
                                             Plural(damaged_steps_, "step")),
                      .file = from_->directory()});
  }

 private:
  /// Opens the target again after an error. kNotFound: it is gone; it is not created again.
  Result<void> OpenTarget() {
    if (!reopens_) return {};
    to_.reset();
    CAIRN_TRY_ASSIGN(const std::string store, ParseStore(command_.copy.to, ""));
    CAIRN_TRY(kv::Store::Open(store, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(to_, kv::Store::Open(store, kv::OpenMode::kWrite));
    reopens_ = false;
    return {};
  }

  Result<void> CopyOnce() {
    CAIRN_TRY_ASSIGN(const auto snapshot, from_->Latest());
    CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> changed, NewSteps(*snapshot));
    if (!changed.empty() || !command_.follow) {
      std::vector<uint64_t> steps;
      for (const kv::StepInfo& step : changed) steps.push_back(step.step);
      CAIRN_TRY_ASSIGN(const TimedCopy copy,
                       CopyWithProgress(*from_, *to_, command_.copy, throttle_, std::move(steps),
                                        /*skip_lost=*/true));
      if (command_.copy.json) {
        out_.WriteLine(JsonLine(CopyJson(*from_, *to_, copy)));
      } else {
        PrintCopy(copy, /*only_new=*/true, out_);
      }
      for (const Error& damage : copy.report.damaged) {
        Warn("kv-admin", EscapeText(damage.ToString()) + "; this step is not copied");
      }
      damaged_steps_ += copy.report.damaged.size();
    }
    for (const kv::StepInfo& step : changed) done_[step.step] = step.generation;
    return command_.prune ? Prune(*snapshot) : Result<void>();
  }

  /// Returns the steps that were added or replaced since the last round, all of them in the first.
  Result<std::vector<kv::StepInfo>> NewSteps(const kv::Snapshot& snapshot) {
    const std::vector<uint64_t>& numbers = snapshot.step_numbers();
    std::vector<kv::StepInfo> changed;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto done = done_.find(numbers[i]);
      if (done != done_.end() && i + kComparedSteps < numbers.size()) continue;
      CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot.FindStep(numbers[i]));
      if (done == done_.end() || done->second != step.generation) changed.push_back(step);
    }
    return changed;
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
  std::unique_ptr<kv::Store> to_;  // null: it could not be opened again
  bool reopens_ = false;           // `to_` is opened again before the next round
  Output& out_;
  std::map<uint64_t, uint64_t> done_;  // generations of the steps that were copied or are damaged
  size_t damaged_steps_ = 0;
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

/// Copies the steps of `from` that `to` lacks, with a warning for each that is damaged. With
/// `follow`, waits for new ones until SIGINT or SIGTERM, which is a success, and continues after
/// kUnavailable. kDataLoss: all but the damaged steps were copied. kFailedPrecondition: `from` has
/// no steps, and `prune` would delete all of `to`. Other errors: see kv::CopySteps.
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

Result<void> Copy(const CopyCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const uint64_t rate, ParseRate(command.max_rate));
  const auto throttle = std::make_shared<kv::Throttle>(rate);
  CAIRN_TRY_ASSIGN(StepsAddress address, ParseStepsAddress(command.from));
  CAIRN_TRY_ASSIGN(const auto from, kv::Store::Open(address.store, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const auto snapshot, from->Latest());
  if (address.steps.empty()) {
    CAIRN_TRY_ASSIGN(const kv::StepInfo latest, snapshot->FindStep(std::nullopt));
    address.steps.push_back(latest.step);
  }
  // A refused request, such as for a mistyped step, must not create an empty store.
  for (const uint64_t step : address.steps) CAIRN_TRY(snapshot->FindStep(step));
  if (command.into && address.steps.size() != 1) {
    return Fail(ErrorCode::kInvalidArgument, "only one step can be copied to another number");
  }
  CAIRN_TRY_ASSIGN(const auto to, OpenCopyTarget(command.to));
  CAIRN_TRY_ASSIGN(const TimedCopy copy,
                   CopyWithProgress(*from, *to, command, throttle, address.steps,
                                    /*skip_lost=*/false));
  CAIRN_TRY(to->Close());
  if (command.json) {
    WriteJson(out, CopyJson(*from, *to, copy));
  } else {
    PrintCopy(copy, /*only_new=*/false, out);
    const uint64_t bytes = copy.copied_bytes();
    if (bytes > 0) {
      out.WriteLine(fmt::format("copied {} in {}, {}", HumanBytes(bytes),
                                HumanSeconds(copy.seconds), HumanRate(bytes, copy.seconds)));
    }
  }
  for (const kv::CopiedStep& step : copy.report.steps) {
    if (step.outcome == Outcome::kDeleted) {
      return Fail(Error{.code = ErrorCode::kNotFound,
                        .hint = Hint::kListSteps,
                        .message = "the step was deleted during the copy",
                        .file = from->directory(),
                        .step = step.step});
    }
  }
  return {};
}

Verb PushVerb() {
  const auto command = std::make_shared<CopyCommand>();
  return {
      .name = "push",
      .usage = "push FROM[@STEP] TO",
      .summary = "Copies steps to another store, transferring only what it lacks",
      .arguments = CopyArguments(
          *command,
          Required(
              "FROM[@STEP]", &command->from,
              "Store and step to copy; @STEP,STEP,... for several; without it the latest step")),
      .examples = {"kv-admin push /dev/shm/gpt runs/gpt",
                   "kv-admin push runs/gpt@100,200 /mnt/archive/gpt --max-rate 100M"},
      .notes = kCopyNotes,
      .run = [command](Output& out) { return StatusOf(Copy(*command, out)); }};
}

Verb PullVerb() {
  Verb verb = PushVerb();
  verb.name = "pull";
  verb.usage = "pull FROM[@STEP] TO";
  verb.summary = "Copies steps from another store; the same as push";
  verb.examples = {"kv-admin pull /mnt/archive/gpt@100 runs/gpt"};
  return verb;
}

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
