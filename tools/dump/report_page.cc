// The document of a report, and the page that shows it.
//
// Rows are bytes in base64, with one byte per column: 0 means nothing, and 1 to 255 a share, or a
// number on a logarithmic scale. tools/dump/page/data.js decodes them.

#include "tools/dump/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/report_findings.h"
#include "tools/dump/statistics_text.h"

namespace cairn::tools {
namespace {

using core::Report;
using core::ReportModule;

/// Steps are merged until the timeline has at most so many columns.
constexpr size_t kMaxTimelineColumns = 2000;
constexpr size_t kMaxKeyBytes = 1 << 10;
constexpr size_t kMaxMetrics = 16;
constexpr size_t kMaxSegments = 200;
constexpr size_t kMaxProblems = 100;
constexpr size_t kMaxProblemBytes = 500;

std::string Base64(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) word = word << 8 | (i + j < bytes.size() ? bytes[i + j] : 0);
    const size_t digits = std::min<size_t>(3, bytes.size() - i) + 1;
    for (size_t j = 0; j < 4; ++j) text += j < digits ? kDigits[word >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

/// Rounds into 1 to 255.
uint8_t Level(double value) {
  return static_cast<uint8_t>(std::clamp(std::round(value), 1.0, 255.0));
}

uint8_t ShareLevel(double share) { return share > 0 ? Level(1 + share * 254) : 0; }
uint8_t CountLevel(uint64_t count) {
  return count > 0 ? Level(1 + 4 * std::log2(static_cast<double>(count))) : 0;
}
uint8_t MagnitudeLevel(double value) {
  if (std::isinf(value)) return 255;
  return value > 0 ? std::min<uint8_t>(254, Level(128 + 8 * std::log10(value))) : 0;
}
uint8_t ShiftLevel(double shift) { return shift > 0 ? Level(255 + 32 * std::log10(shift)) : 0; }

template <typename Values, typename ToLevel>
void AddRow(std::string_view name, const Values& values, const ToLevel& to_level, Json& rows) {
  std::vector<uint8_t> levels;
  levels.reserve(values.size());
  for (const auto value : values) levels.push_back(to_level(value));
  if (std::ranges::any_of(levels, [](uint8_t level) { return level > 0; })) {
    rows[name] = Base64(levels);
  }
}

Json ModuleJson(const ReportModule& module) {
  Json json = {{"name", ShortName(module.name)},
               {"parent", module.parent},
               {"kind", module.is_tensor ? "tensor"
                        : module.is_rest ? "rest"
                                         : "module"},
               {"tensors", module.tensors},
               {"bytes", module.logical_bytes},
               {"stored", module.stored_bytes},
               {"unchanged", module.unchanged_bytes},
               {"changed_at", module.last_changed_step}};
  Json rows = Json::object();
  AddRow("changed", module.changed, ShareLevel, rows);
  AddRow("nans", module.nans, CountLevel, rows);
  AddRow("infs", module.infs, CountLevel, rows);
  AddRow("abs_max", module.abs_max, MagnitudeLevel, rows);
  AddRow("mean_shift", module.mean_shift, ShiftLevel, rows);
  json["rows"] = std::move(rows);
  return json;
}

Json TensorRowJson(const core::ReportTensor& tensor, bool with_key) {
  const std::string name = ShortName(tensor.info.fqn);
  Json json = {{"fqn", name},
               {"module", tensor.module},
               {"dtype", schema::DTypeName(tensor.info.dtype)},
               {"shape", ShapeText(tensor.info.shape).substr(0, 100)},
               {"bytes", tensor.info.nbytes},
               {"changed_at", tensor.last_changed_step}};
  if (with_key && name != tensor.info.fqn) {
    const bool is_short = tensor.info.fqn.size() <= kMaxKeyBytes;
    json["key"] = is_short ? Json(JsonText(tensor.info.fqn)) : Json(nullptr);
  }
  if (!tensor.statistics) return json;
  json["count"] = tensor.statistics->count;
  json.update(ValuesJson(*tensor.statistics, "nans", "infs"));
  return json;
}

/// A number with few digits, so that lists of them are short.
Json Rounded(double value) {
  return std::isfinite(value) ? Json::parse(fmt::format("{:.6g}", value)) : FloatJson(value);
}

/// The list of what `to_json`, a function or a member, returns for each item.
template <typename Items, typename ToJson>
Json ListOf(const Items& items, const ToJson& to_json) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(std::invoke(to_json, item));
  return list;
}

Json SeriesJson(const core::ReportSeries& series) {
  const auto rounded = [&](double core::ReportPoint::* member) {
    return ListOf(series.points, [&](const core::ReportPoint& p) { return Rounded(p.*member); });
  };
  return {{"fqn", ShortName(series.fqn)},
          {"steps", ListOf(series.points, &core::ReportPoint::step)},
          {"min", rounded(&core::ReportPoint::min)},
          {"max", rounded(&core::ReportPoint::max)},
          {"mean", rounded(&core::ReportPoint::mean)}};
}

/// The steps of one column of the timeline.
std::pair<size_t, size_t> StepsOf(size_t column, size_t columns, size_t steps) {
  return {column * steps / columns, (column + 1) * steps / columns};
}

Json TimelineJson(const std::vector<kv::StepInfo>& steps) {
  const size_t columns = std::min(steps.size(), kMaxTimelineColumns);
  std::vector<uint64_t> first, last, counts, logical, written, reused, seconds;
  for (size_t column = 0; column < columns; ++column) {
    const auto [begin, end] = StepsOf(column, columns, steps.size());
    uint64_t logical_sum = 0, written_sum = 0, reused_sum = 0;
    for (size_t i = begin; i < end; ++i) {
      const uint64_t bytes = steps[i].logical_bytes;
      logical_sum += bytes;
      written_sum += steps[i].written_bytes;
      reused_sum += bytes - std::min(bytes, steps[i].written_bytes);
    }
    first.push_back(steps[begin].step);
    last.push_back(steps[end - 1].step);
    counts.push_back(end - begin);
    logical.push_back(logical_sum / (end - begin));
    written.push_back(written_sum / (end - begin));
    reused.push_back(reused_sum / (end - begin));
    seconds.push_back(static_cast<uint64_t>(
        std::max<int64_t>(0, steps[end - 1].created_unix_ns / 1'000'000'000)));
  }
  return {{"first", first},     {"last", last},     {"steps", counts}, {"logical", logical},
          {"written", written}, {"shared", reused}, {"saved", seconds}};
}

/// The metrics that most steps have, with the last value of each column.
Json MetricsJson(const std::vector<kv::StepInfo>& steps) {
  std::map<std::string, size_t> counts;
  for (const kv::StepInfo& step : steps) {
    for (const kv::Metric& metric : step.metrics) ++counts[metric.name];
  }
  std::vector<std::pair<std::string, size_t>> names(counts.begin(), counts.end());
  std::ranges::stable_sort(names, std::ranges::greater(), &std::pair<std::string, size_t>::second);
  if (names.size() > kMaxMetrics) names.resize(kMaxMetrics);
  const size_t columns = std::min(steps.size(), kMaxTimelineColumns);
  Json metrics = Json::array();
  for (const auto& [name, count] : names) {
    Json values = Json::array();
    for (size_t column = 0; column < columns; ++column) {
      const auto [begin, end] = StepsOf(column, columns, steps.size());
      Json value = nullptr;
      for (size_t i = begin; i < end; ++i) {
        const auto found = std::ranges::find(steps[i].metrics, name, &kv::Metric::name);
        if (found != steps[i].metrics.end()) value = Rounded(found->value);
      }
      values.push_back(std::move(value));
    }
    metrics.push_back({{"name", ShortName(name)}, {"values", std::move(values)}});
  }
  return metrics;
}

Json SpaceJson(const core::ReportSpace& space) {
  std::vector<const kv::SegmentSpace*> order;
  for (const kv::SegmentSpace& segment : space.segments) order.push_back(&segment);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [](const kv::SegmentSpace* one) { return one->segment.file_bytes; });
  if (order.size() > kMaxSegments) order.resize(kMaxSegments);
  Json segments = Json::array();
  for (const kv::SegmentSpace* one : order) {
    segments.push_back({{"name", ShortName(one->segment.name)},
                        {"step", one->segment.step},
                        {"rank", one->segment.rank},
                        {"file", one->segment.file_bytes},
                        {"live", one->live_bytes},
                        {"shared", one->shared_bytes},
                        {"payload", one->segment.payload_bytes}});
  }
  return {{"file", space.file_bytes},
          {"payload", space.payload_bytes},
          {"live", space.live_bytes},
          {"shared", space.shared_bytes},
          {"unused", space.unused_file_bytes},
          {"unused_files", space.unused_files},
          {"segment_count", space.segments.size()},
          {"segments", std::move(segments)}};
}

/// States what the document does not show by itself.
Json NotesJson(const Report& report) {
  Json notes = Json::array();
  if (report.examined_steps < report.steps.size()) {
    notes.push_back(fmt::format(
        "The records of {} of {} were examined; kv-dump report --all-steps examines all. The other "
        "steps are only in the timeline.",
        GroupedCount(report.examined_steps), Plural(report.steps.size(), "step")));
  }
  if (report.steps.size() > kMaxTimelineColumns) {
    notes.push_back(
        fmt::format("The timeline shows {} in {} columns, with means of their bytes and the "
                    "last value of a metric.",
                    Plural(report.steps.size(), "step"), GroupedCount(kMaxTimelineColumns)));
  }
  if (report.columns.size() < report.examined_steps) {
    notes.push_back(fmt::format(
        "The heat map shows {} in {} columns, with the largest value of each.",
        Plural(report.examined_steps, "examined step"), GroupedCount(report.columns.size())));
  }
  if (report.merged_tensors > 0) {
    notes.push_back(
        fmt::format("{} are merged into nodes named \"others\", because their modules are "
                    "small or have many parts.",
                    Plural(report.merged_tensors, "tensor")));
  }
  if (report.tensors.size() < report.all_tensors) {
    notes.push_back(
        fmt::format("The list of tensors has {} of {}: those with NaN or infinities first, "
                    "then the largest.",
                    GroupedCount(report.tensors.size()), GroupedCount(report.all_tensors)));
  }
  if (report.space.segments.size() > kMaxSegments) {
    notes.push_back(fmt::format("The list of segments has the {} largest of {}.", kMaxSegments,
                                GroupedCount(report.space.segments.size())));
  }
  if (report.problem_count > kMaxProblems) {
    notes.push_back(fmt::format("The list of problems has {} of {}.", kMaxProblems,
                                GroupedCount(report.problem_count)));
  }
  return notes;
}

Json ColumnsJson(const std::vector<core::ReportColumn>& columns) {
  return {{"first", ListOf(columns, &core::ReportColumn::first_step)},
          {"last", ListOf(columns, &core::ReportColumn::last_step)},
          {"examined", ListOf(columns, &core::ReportColumn::examined_steps)},
          {"total", ListOf(columns, &core::ReportColumn::total_steps)}};
}

/// Returns the document as text that can be inside of a script element: no character in it can end
/// the element, and it is still JSON.
std::string DataInScript(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    // These characters occur only in strings, where JSON allows escapes.
    const std::string_view rest = json.substr(i);
    if (json[i] == '<') {
      text += "\\u003c";
    } else if (json[i] == '>') {
      text += "\\u003e";
    } else if (json[i] == '&') {
      text += "\\u0026";
    } else if (rest.starts_with("\u2028") || rest.starts_with("\u2029")) {
      text += rest.starts_with("\u2028") ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      text += json[i];
    }
  }
  return text;
}

}  // namespace

Json ReportJson(const core::Report& report, bool with_keys) {
  const auto tensor_json = [&](const core::ReportTensor& tensor) {
    return TensorRowJson(tensor, with_keys);
  };
  Json tags = Json::array();
  for (const auto& [tag, step] : report.tags)
    tags.push_back({{"tag", ShortName(tag)}, {"step", step}});
  Json problems = Json::array();
  for (size_t i = 0; i < std::min(report.problems.size(), kMaxProblems); ++i) {
    problems.push_back(FirstBytes(EscapeText(report.problems[i].ToString()), kMaxProblemBytes));
  }
  uint64_t logical = 0, written = 0;
  for (const kv::StepInfo& step : report.steps) {
    logical += step.logical_bytes;
    written += step.written_bytes;
  }
  Json json = {{"cairn_report", 1},
               {"version", CAIRN_VERSION},
               {"store", ShortName(report.address)},
               {"uuid", report.uuid},
               {"generated", IsoTime(NowUnixNs())},
               {"steps", report.steps.size()},
               {"examined_steps", report.examined_steps},
               {"steps_with_statistics", report.steps_with_statistics},
               {"chunk_records", report.records},
               {"logical_bytes", logical},
               {"written_bytes", written},
               {"tensor_count", report.all_tensors},
               {"findings", FindingsJson(report)},
               {"notes", NotesJson(report)},
               {"timeline", TimelineJson(report.steps)},
               {"metrics", MetricsJson(report.steps)},
               {"tags", std::move(tags)},
               {"columns", ColumnsJson(report.columns)},
               {"modules", ListOf(report.modules, ModuleJson)},
               {"tensors", ListOf(report.tensors, tensor_json)},
               {"series", ListOf(report.series, SeriesJson)},
               {"space", SpaceJson(report.space)},
               {"problems", std::move(problems)},
               {"problem_count", report.problem_count}};
  if (report.phase) json["phase"] = {{"reference_step", report.phase->reference_step}};
  return json;
}

std::string ReportPage(std::string_view json) {
  std::string page(kPageBeforeData);
  page += DataInScript(json);
  page += kPageAfterData;
  return page;
}

std::string LivePage(std::string_view json) {
  static constexpr std::string_view kForbidden = "connect-src 'none'";
  std::string page = ReportPage(json);
  page.replace(page.find(kForbidden), kForbidden.size(), "connect-src 'self'");
  return page;
}

}  // namespace cairn::tools
