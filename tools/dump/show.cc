// `kv-dump show`: values and statistics of one key.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/step/contents.h"
#include "core/tensor/chunk_grid.h"
#include "kv/base/step_info.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/array_text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/tensor_values.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

/// --all is for people and small scripts; the library reads larger parts.
constexpr uint64_t kMaxElementsOfAll = 1 << 22;

struct Subject {
  OpenedStore opened;
  kv::StepInfo step;
  core::TensorInfo tensor;
  Slice slice;
  bool sliced = false;
};

Result<int> ShowValue(const DumpRun& run, const kv::StepInfo& step, const core::ValueInfo& value) {
  if (run.json) {
    WriteJson(*run.out, ValueJson(value, step.step));
    return kExitSuccess;
  }
  run.out->WriteLine(fmt::format("{}  {} of step {}",
                                 run.out->Styled(Style::kBold, EscapeText(value.fqn)),
                                 core::TypeName(value.value), step.step));
  run.out->WriteLine("");
  run.out->WriteLine(ValueText(value.value));
  return kExitSuccess;
}

void PrintStatistics(Output& out, const core::Statistics& statistics) {
  std::string line;
  const auto add = [&](std::string_view name, const std::string& value, Style style) {
    line += fmt::format("{}{} {}", line.empty() ? "" : "   ", out.Styled(Style::kDim, name),
                        out.Styled(style, value));
  };
  const auto count = [&](std::string_view name, uint64_t value, Style style) {
    add(name,
        value == 0 ? "0"
                   : fmt::format("{} ({})", GroupedCount(value), Percent(value, statistics.count)),
        value == 0 ? Style::kPlain : style);
  };
  if (statistics.min) add("min", statistics.min_text, Style::kPlain);
  if (statistics.max) add("max", statistics.max_text, Style::kPlain);
  if (statistics.mean) add("mean", fmt::format("{:.6g}", *statistics.mean), Style::kPlain);
  if (statistics.std_deviation) {
    add("std", fmt::format("{:.6g}", *statistics.std_deviation), Style::kPlain);
  }
  count("zeros", statistics.zeros, Style::kPlain);
  count("NaN", statistics.nans, Style::kRed);
  count("Inf", statistics.infs, Style::kRed);
  out.WriteLine(line);
}

void PrintHead(Output& out, const Subject& subject) {
  const core::TensorInfo& tensor = subject.tensor;
  std::string line = fmt::format("{}  {} {}, {}", out.Styled(Style::kBold, EscapeText(tensor.fqn)),
                                 schema::DTypeName(tensor.dtype), ShapeText(tensor.shape),
                                 HumanBytes(tensor.nbytes));
  if (tensor.alias_of) {
    line += fmt::format(", shares {}", EscapeText(*tensor.alias_of));
  } else {
    line += fmt::format(" in {}", Plural(tensor.chunk_count, "chunk"));
  }
  out.WriteLine(fmt::format("{}, step {}", line, subject.step.step));
  if (!subject.sliced) return;
  std::vector<std::string> ranges;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const uint64_t begin = subject.slice.box.offsets[d];
    ranges.push_back(subject.slice.dropped[d]
                         ? fmt::to_string(begin)
                         : fmt::format("{}:{}", begin, begin + subject.slice.box.sizes[d]));
  }
  out.WriteLine(
      fmt::format("slice [{}], shape {}", fmt::join(ranges, ", "), ShapeText(subject.slice.shape)));
}

Result<int> ShowTensor(const DumpRun& run, const Subject& subject) {
  const core::DType dtype = subject.tensor.dtype;
  CAIRN_TRY_ASSIGN(const uint64_t elements, core::ElementCount(subject.slice.box.sizes));
  if (run.all && elements > kMaxElementsOfAll) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--all prints at most {} elements, but there are {}; choose some with "
                            "--slice, such as --slice 0:4",
                            GroupedCount(kMaxElementsOfAll), GroupedCount(elements)));
  }
  const TensorPart part = {.store = subject.opened.store.get(),
                           .step = subject.step,
                           .tensor = subject.tensor,
                           .box = subject.slice.box};
  const bool whole = run.all || elements <= kMaxShownElements;
  const ArrayLayout layout(part.box.sizes, whole);
  std::optional<core::Statistics> statistics;
  CAIRN_TRY_ASSIGN(const bool can_read_all, CanReadAll(part));
  if (can_read_all) {
    ProgressLine line("reading");
    CAIRN_TRY_ASSIGN(statistics, MeasureStatistics(part, line.callback()));
  }
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> cells, LoadShown(part, layout));
  if (run.json) {
    Json json = TensorJson(subject.tensor, subject.step.step);
    if (subject.sliced) json["slice"] = {{"offsets", part.box.offsets}, {"sizes", part.box.sizes}};
    json["statistics"] = statistics ? StatisticsJson(dtype, *statistics) : Json(nullptr);
    json["truncated"] = !whole;
    json["values"] = whole ? ArrayJson(dtype, subject.slice.shape, cells) : Json(nullptr);
    WriteJson(*run.out, json);
    return kExitSuccess;
  }
  PrintHead(*run.out, subject);
  run.out->WriteLine("");
  if (statistics) {
    PrintStatistics(*run.out, *statistics);
  } else {
    run.out->WriteLine("no statistics: the tensor repeats what is stored to a much larger size");
  }
  run.out->WriteLine("");
  const uint32_t width = run.out->width_columns() != 0 ? run.out->width_columns() : 100;
  run.out->WriteLine(ArrayText(dtype, layout, subject.slice.dropped, cells, width));
  return kExitSuccess;
}

}  // namespace

Result<int> DumpShow(const DumpRun& run) {
  const std::string& fqn = run.second;
  Subject subject{.sliced = !run.slice.empty()};
  CAIRN_TRY_ASSIGN(subject.opened, OpenStore(run.address));
  CAIRN_TRY_ASSIGN(subject.step, FindStep(subject.opened));
  CAIRN_TRY_ASSIGN(FoundKey found, FindKey(*subject.opened.store, subject.step, fqn));
  if (const auto* const value = std::get_if<core::ValueInfo>(&found)) {
    if (!subject.sliced) return ShowValue(run, subject.step, *value);
    return Fail(
        Error{.code = ErrorCode::kInvalidArgument,
              .message = "--slice applies to tensors, and this key is a plain value; omit it",
              .key = fqn});
  }
  subject.tensor = std::get<core::TensorInfo>(std::move(found));
  CAIRN_TRY_ASSIGN(subject.slice, ParseSlice(run.slice, subject.tensor.shape));
  return ShowTensor(run, subject);
}

}  // namespace cairn::tools
