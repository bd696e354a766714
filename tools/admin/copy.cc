// `kv-admin push` and `kv-admin pull`: copy steps between stores.

#include "tools/admin/copy.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "kv/base/options.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "tools/common/address.h"
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

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCopied:
      return "copied";
    case Outcome::kPresent:
      return "present";
    case Outcome::kDeleted:
      return "deleted";
  }
  return "";
}

Json StepJson(const kv::CopiedStep& step) {
  return {{"step", step.step},
          {"outcome", OutcomeName(step.outcome)},
          {"logical_bytes", step.logical_bytes},
          {"copied_segments", step.copied_segments},
          {"copied_bytes", step.copied_bytes},
          {"reused_segments", step.reused_segments},
          {"table_bytes", step.table_bytes}};
}

/// Draws one line per step.
class StepProgress {
 public:
  bool Update(const kv::CopyProgress& progress) {
    if (!line_ || progress.step != step_) {
      line_.reset();
      step_ = progress.step;
      line_.emplace(fmt::format("copying step {}:", step_));
    }
    return line_->Update(progress.done_bytes, progress.total_bytes);
  }

 private:
  uint64_t step_ = 0;
  std::optional<ProgressLine> line_;
};

}  // namespace

uint64_t TimedCopy::copied_bytes() const {
  uint64_t bytes = 0;
  for (const kv::CopiedStep& step : report.steps) bytes += step.copied_bytes + step.table_bytes;
  return bytes;
}

Result<std::unique_ptr<kv::Store>> OpenCopyTarget(const std::string& to) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(to));
  if (!address.step) return kv::Store::Open(address.store, kv::OpenMode::kWrite);
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("steps are copied to a store, not to a step; write {} without one",
                          ShellWord(address.store)));
}

Result<std::shared_ptr<kv::Throttle>> CopyThrottle(const CopyCommand& command) {
  if (command.max_rate.empty()) return nullptr;
  CAIRN_TRY_ASSIGN(const uint64_t bytes_per_second, ParseBytes(command.max_rate));
  if (bytes_per_second == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "--max-rate must be at least one byte per second; write a rate such as 100M");
  }
  return std::make_shared<kv::Throttle>(bytes_per_second);
}

Result<TimedCopy> CopyWithProgress(kv::Store& from, kv::Store& to, const CopyCommand& command,
                                   const std::shared_ptr<kv::Throttle>& throttle,
                                   std::vector<uint64_t> steps) {
  StepProgress progress;
  const kv::CopyOptions options{
      .steps = std::move(steps),
      .into = command.into,
      .overwrite = command.overwrite,
      .threads = static_cast<uint32_t>(command.threads),
      .throttle = throttle,
      .progress = [&](const kv::CopyProgress& done) { return progress.Update(done); }};
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

Result<void> AdminCopy(const CopyCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const auto throttle, CopyThrottle(command));
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

}  // namespace cairn::tools
