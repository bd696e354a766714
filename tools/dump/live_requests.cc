// Answers the requests of the live view.

#include "tools/dump/live_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "core/inspect/compare.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/contents.h"
#include "kv/read/snapshot.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "tools/common/timestamps.h"
#include "tools/dump/array_text.h"
#include "tools/dump/change_kind.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/report_page.h"
#include "tools/dump/slice.h"
#include "tools/dump/tensor_values.h"
#include "tools/dump/value_difference.h"

namespace cairn::tools {
namespace {

constexpr size_t kMaxFoundKeys = 100;
constexpr size_t kMaxChanges = 1000;
constexpr size_t kMaxVersions = 500;
constexpr uint32_t kArrayColumns = 100;
/// A distribution covers a sample of this size unless a request asks for everything.
constexpr uint64_t kMaxSampleBytes = 64 << 20;
constexpr uint64_t kMaxValueText = 1 << 20;

int StatusOf(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kUnavailable:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

/// Text for people, and the exact name for further requests.
Json NamedJson(const std::string& fqn) {
  return {{"fqn", EscapeText(fqn)}, {"key", JsonText(fqn)}};
}

/// A step as text: the numbers of JavaScript are exact only up to 2^53.
std::string StepText(uint64_t step) { return fmt::to_string(step); }

/// Long work ends when the server does.
core::Progress UntilCancelled() {
  return [](uint64_t, uint64_t) { return !CancelRequested(); };
}

Result<std::string> Required(const HttpRequest& request, const std::string& parameter) {
  std::optional<std::string> value = request.Parameter(parameter);
  if (value) return *std::move(value);
  return Fail(ErrorCode::kInvalidArgument, fmt::format("the parameter {} is missing", parameter));
}

Json ChangeJson(const core::KeyChange& change) {
  Json json = NamedJson(change.fqn);
  json.Merge({{"change", KindName(change.kind)},
              {"kind", change.is_tensor ? "tensor" : "value"},
              {"changed_bytes", change.changed_bytes},
              {"total_bytes", change.total_bytes},
              {"detail", EscapeText(change.detail)}});
  return json;
}

Json HistogramJson(const core::Histogram& histogram) {
  return {{"low", FloatJson(histogram.low)},
          {"width", FloatJson(histogram.width)},
          {"counts", histogram.counts}};
}

Json ValueInfoJson(const kv::StepInfo& step, const core::ValueInfo& value) {
  const auto* text = std::get_if<std::string>(&value.value);
  std::string shown = EscapeText(text != nullptr ? *text : core::FormatValue(value.value));
  const bool is_cut = shown.size() > kMaxValueText;
  shown.resize(FirstBytes(shown, kMaxValueText).size());
  Json json = NamedJson(value.fqn);
  json.Merge({{"step", StepText(step.step)},
              {"kind", "value"},
              {"type", ValueKindName(value.value)},
              {"truncated", is_cut},
              {"text", std::move(shown)}});
  return json;
}

/// Adds the distribution of the elements of `part`, which has `elements` of them.
Result<void> AddValues(const TensorPart& part, const Slice& slice, bool exact, Json& json) {
  const core::DType dtype = part.tensor.dtype;
  core::TensorInfo shown = part.tensor;
  shown.shape = part.box.sizes;
  CAIRN_TRY_ASSIGN(shown.nbytes, core::TensorBytes(dtype, shown.shape));
  // If a tensor repeats a few elements very often, only its values are shown.
  if (core::CheckRepeats({&shown, 1})) {
    CAIRN_TRY_ASSIGN(
        const Distribution distribution,
        MeasureDistribution(part, exact ? UINT64_MAX : kMaxSampleBytes, UntilCancelled()));
    json.Set("elements", distribution.elements);
    json.Set("read_elements", distribution.read_elements);
    json.Set("statistics", StatisticsJson(dtype, distribution.statistics));
    if (distribution.histogram) json.Set("histogram", HistogramJson(*distribution.histogram));
  }
  CAIRN_TRY_ASSIGN(const uint64_t elements, core::ElementCount(part.box.sizes));
  const ArrayLayout layout(part.box.sizes, elements <= kMaxShownElements);
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> cells, LoadShown(part, layout));
  json.Set("text", ArrayText(dtype, layout, slice.dropped, cells, kArrayColumns));
  return {};
}

}  // namespace

LiveRequests::LiveRequests(const core::CheckpointStore* store, bool all_steps)
    : store_(store), report_(store, all_steps), search_(store) {}

HttpResponse LiveRequests::Answer(const HttpRequest& request) {
  if (request.path == "/") return Page();
  Result<Json> document = Fail(ErrorCode::kNotFound, "there is no such page; the first one is /");
  if (request.path == "/api/report") {
    auto report = report_.Current(UntilCancelled());
    if (report) return {.body = (*report)->json};
    document = std::unexpected(report.error());
  } else if (request.path == "/api/state") {
    document = State();
  } else if (request.path == "/api/steps") {
    document = Steps();
  } else if (request.path == "/api/keys") {
    document = Keys(request);
  } else if (request.path == "/api/key") {
    document = Key(request);
  } else if (request.path == "/api/history") {
    document = History(request);
  } else if (request.path == "/api/diff") {
    document = Diff(request);
  } else if (request.path == "/api/difference") {
    document = Difference(request);
  }
  if (document) return {.body = document->Line()};
  Json error = ErrorJson(document.error());
  error.Set("message", EscapeText(document.error().message));  // it may contain names
  if (!document.error().key.empty()) error.Set("key", EscapeText(document.error().key));
  return {.status = StatusOf(document.error()), .body = Json({{"error", std::move(error)}}).Line()};
}

HttpResponse LiveRequests::Page() {
  auto report = report_.Current(UntilCancelled());
  if (!report) {
    return {.status = StatusOf(report.error()),
            .content_type = "text/plain",
            .body = EscapeText(report.error().ToString()) + "\n"};
  }
  return {.content_type = "text/html",
          .body = LivePage((*report)->json),
          .policy = "frame-ancestors 'self'"};  // the page has its own, too
}

Result<Json> LiveRequests::State() {
  CAIRN_TRY_ASSIGN(const LiveReport::State state, report_.Latest());
  Json json = {{"version", state.version}, {"steps", state.snapshot->step_numbers().size()}};
  if (!state.snapshot->step_numbers().empty()) {
    CAIRN_TRY_ASSIGN(const kv::StepInfo latest, state.snapshot->FindStep(std::nullopt));
    json.Set("latest", {{"step", StepText(latest.step)},
                        {"saved", std::max<int64_t>(0, latest.created_unix_ns / 1'000'000'000)}});
  }
  json.Set("now", NowUnixNs() / 1'000'000'000);
  return json;
}

Result<Json> LiveRequests::Steps() {
  CAIRN_TRY_ASSIGN(const LiveReport::State state, report_.Latest());
  Json tags = Json::List();
  for (const auto& [tag, step] : state.snapshot->tags()) {
    tags.Append({{"tag", EscapeText(tag)}, {"step", StepText(step)}});
  }
  Json steps = Json::List();
  for (const uint64_t step : state.snapshot->step_numbers()) steps.Append(StepText(step));
  return Json{{"version", state.version}, {"steps", std::move(steps)}, {"tags", std::move(tags)}};
}

Result<kv::StepInfo> LiveRequests::FindStep(const HttpRequest& request,
                                            const std::string& parameter) {
  CAIRN_TRY_ASSIGN(const LiveReport::State state, report_.Latest());
  const std::optional<std::string> text = request.Parameter(parameter);
  if (!text) return state.snapshot->FindStep(std::nullopt);
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), step);
  if (error != std::errc() || end != text->data() + text->size()) {
    CAIRN_TRY_ASSIGN(step, state.snapshot->FindTag(*text));
  }
  return state.snapshot->FindStep(step);
}

Result<Json> LiveRequests::Keys(const HttpRequest& request) {
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(request, "step"));
  CAIRN_TRY_ASSIGN(const SearchWords words,
                   SearchWords::Parse(request.Parameter("query").value_or("")));
  CAIRN_TRY_ASSIGN(const KeySearch::Found found,
                   search_.Find(step, words, kMaxFoundKeys, UntilCancelled()));
  Json keys = Json::List();
  for (const KeySearch::Key& key : found.keys) {
    Json json = NamedJson(key.fqn);
    json.Set("kind", key.is_tensor ? "tensor" : "value");
    if (key.is_tensor) {
      CAIRN_TRY_ASSIGN(const core::TensorInfo tensor, store_->FindTensor(step, key.fqn));
      json.Merge({{"dtype", schema::DTypeName(tensor.dtype)},
                  {"shape", ShapeText(tensor.shape)},
                  {"bytes", tensor.nbytes}});
    }
    keys.Append(std::move(json));
  }
  return Json{{"step", StepText(step.step)},
              {"matches", found.matches},
              {"key_count", found.key_count},
              {"keys", std::move(keys)}};
}

Result<Json> LiveRequests::Key(const HttpRequest& request) {
  CAIRN_TRY_ASSIGN(const std::string fqn, Required(request, "key"));
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(request, "step"));
  const Result<core::TensorInfo> tensor = store_->FindTensor(step, fqn);
  if (tensor) return TensorOf(step, *tensor, request);
  if (tensor.error().code != ErrorCode::kNotFound) return std::unexpected(tensor.error());
  CAIRN_TRY_ASSIGN(const core::KeyPatterns pattern, PatternFor(fqn));
  CAIRN_TRY_ASSIGN(const core::Contents contents, store_->List(step.step, pattern));
  for (const core::ValueInfo& value : contents.values) {
    if (value.fqn == fqn) return ValueInfoJson(step, value);
  }
  return std::unexpected(tensor.error());
}

Result<Json> LiveRequests::TensorOf(const kv::StepInfo& step, const core::TensorInfo& tensor,
                                    const HttpRequest& request) {
  CAIRN_TRY_ASSIGN(const Slice slice,
                   ParseSlice(request.Parameter("slice").value_or(""), tensor.shape));
  Json json = NamedJson(tensor.fqn);
  json.Merge({{"step", StepText(step.step)},
              {"kind", "tensor"},
              {"dtype", schema::DTypeName(tensor.dtype)},
              {"shape", ShapeText(tensor.shape)},
              {"bytes", tensor.nbytes},
              {"chunks", tensor.chunk_count}});
  if (tensor.alias_of) json.Set("alias_of", EscapeText(*tensor.alias_of));
  const TensorPart part{.store = store_, .step = step, .tensor = tensor, .box = slice.box};
  CAIRN_TRY(AddValues(part, slice, request.Parameter("all").has_value(), json));
  return json;
}

Result<Json> LiveRequests::History(const HttpRequest& request) {
  CAIRN_TRY_ASSIGN(const std::string fqn, Required(request, "key"));
  std::deque<Json> last;  // the last versions, the newest first
  uint64_t count = 0;
  CAIRN_TRY(
      core::FindVersions(store_->kv(), fqn, [&](const core::KeyVersion& version) -> Result<void> {
        if (CancelRequested()) return Fail(ErrorCode::kCancelled, "stopped on request");
        ++count;
        Json json = ChangeJson(version.change);
        json.Set("step", StepText(version.step.step));
        last.push_front(std::move(json));
        if (last.size() > kMaxVersions) last.pop_back();
        return {};
      }));
  Json versions = Json::List();
  for (Json& version : last) versions.Append(std::move(version));
  return Json{{"key", JsonText(fqn)}, {"count", count}, {"versions", std::move(versions)}};
}

Result<Json> LiveRequests::Diff(const HttpRequest& request) {
  CAIRN_TRY_ASSIGN(const kv::StepInfo a, FindStep(request, "a"));
  CAIRN_TRY_ASSIGN(const kv::StepInfo b, FindStep(request, "b"));
  CAIRN_TRY_ASSIGN(const SearchWords words,
                   SearchWords::Parse(request.Parameter("query").value_or("")));
  CAIRN_TRY_ASSIGN(const core::Diff diff, core::CompareSteps(store_->kv(), a.step, b.step));
  std::map<core::KeyChange::Kind, uint64_t> counts;
  uint64_t changed_bytes = 0;
  std::vector<const core::KeyChange*> rows;
  for (const core::KeyChange& change : diff.changes) {
    if (!words.Match(change.fqn)) continue;
    ++counts[change.kind];
    changed_bytes += change.changed_bytes;
    rows.push_back(&change);
  }
  std::ranges::stable_sort(rows, std::ranges::greater(), &core::KeyChange::changed_bytes);
  Json list = Json::List();
  for (const core::KeyChange* change : rows | std::views::take(kMaxChanges)) {
    list.Append(ChangeJson(*change));
  }
  using Kind = core::KeyChange::Kind;
  return Json{{"a", StepText(a.step)},
              {"b", StepText(b.step)},
              {"added", counts[Kind::kAdded]},
              {"removed", counts[Kind::kRemoved]},
              {"changed", counts[Kind::kChanged]},
              // Counts all keys; matching keys are not counted.
              {"unchanged", words.empty() ? Json(diff.unchanged_keys) : Json(nullptr)},
              {"changed_bytes", changed_bytes},
              {"changes", std::move(list)}};
}

Result<Json> LiveRequests::Difference(const HttpRequest& request) {
  CAIRN_TRY_ASSIGN(const std::string fqn, Required(request, "key"));
  CAIRN_TRY_ASSIGN(const kv::StepInfo a, FindStep(request, "a"));
  CAIRN_TRY_ASSIGN(const kv::StepInfo b, FindStep(request, "b"));
  CAIRN_TRY_ASSIGN(const core::TensorInfo in_a, store_->FindTensor(a, fqn));
  CAIRN_TRY_ASSIGN(const core::TensorInfo in_b, store_->FindTensor(b, fqn));
  if (in_a.dtype != in_b.dtype || in_a.shape != in_b.shape) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "dtype or shape differ, so the values cannot be compared",
                      .key = fqn});
  }
  CAIRN_TRY_ASSIGN(const ValueDifference difference,
                   CompareTensors(*store_, a, b, in_a, UntilCancelled()));
  Json json = NamedJson(fqn);
  json.Merge({{"a", StepText(a.step)}, {"b", StepText(b.step)}});
  json.Merge(DifferenceJson(difference));
  return json;
}

}  // namespace cairn::tools
