// `kv-admin merge`: a new step of weighted means of existing steps.

#include <fmt/format.h>

#include <algorithm>

#include "core/rewrite/step_merge.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr char kMergeNotes[] =
    "The steps have the same keys, dtypes and shapes. Floating-point tensors are computed in\n"
    "float32 (float64 for float64), in the order of the steps, and rounded once. All else is that\n"
    "of the last step. The shell expands the braces of a store without spaces in its name; "
    "quoted,\n"
    "they mean the same, and can contain tags. The store must not be open for writing elsewhere.";

struct MergeCommand {
  std::vector<std::string> addresses;  // STORE@STEP, or several steps: STORE@{STEP,...}
  std::string weights;                 // as the user wrote them; empty: equal
  uint64_t into = 0;                   // number of the new step
  bool overwrite = false;
};

/// Returns the steps that all addresses name, in their order. They are of one store.
Result<StepsAddress> ParseAddresses(const std::vector<std::string>& texts) {
  StepsAddress all;
  for (const std::string& text : texts) {
    CAIRN_TRY_ASSIGN(const StepsAddress address, ParseStepsAddress(text));
    if (address.steps.empty()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' names no step; write STORE@STEP", EscapeText(text)));
    }
    if (all.steps.empty()) all.store = address.store;
    if (address.store != all.store) {
      return Fail(ErrorCode::kInvalidArgument,
                  "the steps are of several stores; kv-admin push copies steps to one of them");
    }
    all.steps.insert(all.steps.end(), address.steps.begin(), address.steps.end());
  }
  return all;
}

Result<std::vector<double>> ParseWeights(const std::string& text) {
  std::vector<double> weights;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto weight = ParseWhole<double>(std::string_view(text).substr(begin, end - begin));
    if (!weight) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("--weights {}: write numbers with commas between them, such as 1,2.5",
                              EscapeText(text)));
    }
    weights.push_back(*weight);
    begin = end + 1;
  }
  return weights;
}

Result<void> Merge(const MergeCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const StepsAddress address, ParseAddresses(command.addresses));
  core::MergeOptions options{.weights = {}, .overwrite = command.overwrite, .progress = {}};
  CAIRN_TRY_ASSIGN(options.weights, ParseWeights(command.weights));
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  ProgressLine progress(fmt::format("merging {} steps:", address.steps.size()));
  options.progress = progress.callback();
  CAIRN_TRY_ASSIGN(const core::MergeReport merged,
                   store->Merge(address.steps, command.into, options));
  progress.Clear();
  CAIRN_TRY(store->Close());
  const kv::StepInfo& made = merged.step;
  out.WriteLine(fmt::format("step {}: means of {}, {} and {} with {}; wrote {}, read {} in {}",
                            made.step, Plural(address.steps.size(), "step"),
                            Plural(made.tensor_count, "tensor"), Plural(made.value_count, "value"),
                            HumanBytes(made.logical_bytes), HumanBytes(made.written_bytes),
                            HumanBytes(merged.bytes_read), HumanSeconds(merged.seconds)));
  return {};
}

}  // namespace

Verb MergeVerb() {
  const auto command = std::make_shared<MergeCommand>();
  return {.name = "merge",
          .usage = "merge STORE@{STEP,STEP,...} --into STEP",
          .summary = "Makes a step of weighted means of the weights of other steps",
          .arguments = {Required("STORE@STEP", &command->addresses,
                                 "Two or more steps of one store, in the order of summation; "
                                 "{FIRST..LAST} or {FIRST..LAST..STRIDE} for a range"),
                        IntoArgument(command->into),
                        Option("--weights", "W,W,...", &command->weights,
                               "One weight per step, divided by their sum (equal weights)"),
                        OverwriteArgument(command->overwrite)},
          .examples = {"kv-admin merge runs/gpt@{100..500..100} --into 501",
                       "kv-admin merge runs/gpt@100 runs/gpt@200 --weights 1,3 --into 201",
                       "kv-admin merge 'runs/gpt@{best,500}' --into 501"},
          .notes = kMergeNotes,
          .run = [command](Output& out) { return StatusOf(Merge(*command, out)); }};
}

}  // namespace cairn::tools
