#include "tools/admin/copy.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "kv/base/options.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
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

}  // namespace

const char kCopyNotes[] =
    "Only segments that TO lacks are transferred. Every page is verified before it is written, "
    "and\n"
    "a step exists in TO completely or not at all. A copy that was interrupted continues where it\n"
    "was when the command is repeated within a day.";

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

uint64_t TimedCopy::copied_bytes() const {
  uint64_t bytes = 0;
  for (const kv::CopiedStep& step : report.steps) bytes += step.copied_bytes + step.table_bytes;
  return bytes;
}

Result<std::unique_ptr<kv::Store>> OpenCopyTarget(const std::string& to) {
  CAIRN_TRY_ASSIGN(const std::string store,
                   ParseStore(to, "steps are copied to a store, not to a step"));
  return kv::Store::Open(store, kv::OpenMode::kWrite);
}

Result<TimedCopy> CopyWithProgress(kv::Store& from, kv::Store& to, const CopyCommand& command,
                                   const std::shared_ptr<kv::Throttle>& throttle,
                                   std::vector<uint64_t> steps) {
  ProgressLine line("copying");
  const kv::CopyOptions options{
      .steps = std::move(steps),
      .into = command.into,
      .overwrite = command.overwrite,
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
                   CopyWithProgress(*from, *to, command, throttle, address.steps));
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

}  // namespace cairn::tools
