// Steps, tensors, plain values and changes of a store, as JSON and as cells of tables.

#include "tools/dump/contents_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <variant>

#include "core/tensor/element_statistics.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

using schema::DType;

bool IsComplex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kBComplex32 || dtype == DType::kComplex64 ||
         dtype == DType::kComplex128;
}

bool IsFloat(DType dtype) {
  return (dtype >= DType::kFloat16 && dtype <= DType::kFloat64) ||
         (dtype >= DType::kFloat8E4M3FN && dtype <= DType::kFloat8E8M0FNU);
}

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};

Json PlainJson(const core::Value& value) {
  return std::visit(
      Overloaded{[](std::monostate) { return Json(nullptr); }, [](bool v) { return Json(v); },
                 [](int64_t v) { return Json(v); },
                 [](const core::BigInt& v) {
                   return Json{{"twos_complement_le", HexText(v.twos_complement)}};
                 },
                 [](double v) { return FloatJson(v); },
                 [](const std::complex<double>& v) {
                   return Json{{"real", FloatJson(v.real())}, {"imag", FloatJson(v.imag())}};
                 },
                 [](const std::string& v) { return Json(JsonText(v)); },
                 [](const core::Bytes& v) { return Json{{"hex", HexText(v.data)}}; },
                 [](const core::Pickle& v) { return Json{{"pickle_bytes", v.data.size()}}; },
                 [](const core::ChunkedValue& v) { return Json{{"bytes", v.length_bytes}}; }},
      value);
}

std::vector<std::string> TagsOf(const kv::StepInfo& step, const kv::Tags& tags) {
  std::vector<std::string> names;
  for (const auto& [name, tagged] : tags) {
    if (tagged == step.step) names.push_back(name);
  }
  return names;
}

std::string_view KindName(core::KeyChange::Kind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"added", "removed", "changed"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

Json FloatJson(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

Json ElementJson(DType dtype, std::span<const std::byte> element) {
  if (dtype == DType::kBool) return element[0] != std::byte{0};
  if (IsFloat(dtype) || IsComplex(dtype)) {
    const std::complex<double> value = core::ElementValue(dtype, element).value_or(0.0);
    if (IsFloat(dtype)) return FloatJson(value.real());
    return Json::array({FloatJson(value.real()), FloatJson(value.imag())});
  }
  // The text of an integer is exact for 64 bits too; so is the text of two 4-bit floats, "[0.5,
  // -6]".
  Json parsed =
      Json::parse(core::FormatElement(dtype, element), nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? Json(nullptr) : parsed;  // null: an unknown dtype
}

Json StepJson(const kv::StepInfo& step, const kv::Tags* tags) {
  Json json = {{"step", step.step},
               {"created", IsoTime(step.created_unix_ns)},
               {"created_unix_ns", step.created_unix_ns},
               {"world_size", step.world_size},
               {"attempt", JsonText(step.attempt)},
               {"generation", step.generation},
               {"base_step", step.base_step},
               {"keys", step.tensor_count + step.value_count},
               {"tensors", step.tensor_count},
               {"values", step.value_count},
               {"chunks", step.chunk_count},
               {"chunks_reused", step.reused_chunk_count},
               {"logical_bytes", step.logical_bytes},
               {"written_bytes", step.written_bytes}};
  if (step.run) json["run"] = HexText(*step.run);
  if (const auto& parent = step.parent) {
    json["parent"] = {{"step", parent->step}, {"attempt", JsonText(parent->attempt)}};
  }
  if (!step.metrics.empty()) {
    Json& metrics = json["metrics"];
    for (const kv::Metric& metric : step.metrics) metrics[metric.name] = FloatJson(metric.value);
  }
  if (!step.note.empty()) json["note"] = JsonText(step.note);
  const std::vector<std::string> names = tags ? TagsOf(step, *tags) : std::vector<std::string>();
  if (!names.empty()) json["tags"] = names;
  return json;
}

StepNotes::StepNotes(std::span<const kv::StepInfo> steps, const kv::Tags& tags)
    : tags_(tags),
      has_runs_(std::ranges::adjacent_find(steps, std::ranges::not_equal_to(),
                                           &kv::StepInfo::run) != steps.end()),
      has_notes_(std::ranges::any_of(steps, [](const kv::StepInfo& step) {
        return !step.metrics.empty() || !step.note.empty();
      })) {}

void StepNotes::AppendColumns(std::vector<Column>& columns, bool flexible) const {
  constexpr const char* kNotes = "METRICS AND NOTE";
  if (has_runs_) columns.push_back(Left("RUN"));
  if (!tags_.empty()) columns.push_back(Left("TAGS"));
  if (has_notes_) columns.push_back(flexible ? Flexible(kNotes) : Left(kNotes));
}

void StepNotes::AppendCells(const kv::StepInfo& step, std::vector<Cell>& cells) const {
  if (has_runs_) cells.emplace_back(step.run ? HexText(*step.run).substr(0, 8) : "-");
  if (!tags_.empty()) {
    cells.emplace_back(EscapeText(fmt::to_string(fmt::join(TagsOf(step, tags_), ", "))),
                       Style::kCyan);
  }
  if (!has_notes_) return;
  std::vector<std::string> parts;
  for (const kv::Metric& metric : step.metrics) {
    parts.push_back(fmt::format("{}={:.6g}", EscapeText(metric.name), metric.value));
  }
  const std::string line = step.note.substr(0, step.note.find('\n'));
  if (!line.empty()) parts.push_back(EscapeText(line.substr(0, 60)));
  cells.emplace_back(fmt::to_string(fmt::join(parts, "  ")));
}

Json TensorJson(const core::TensorInfo& tensor, std::optional<uint64_t> step) {
  Json json = {{"fqn", JsonText(tensor.fqn)}};
  if (step) json["step"] = *step;
  json.update({{"kind", "tensor"},
               {"dtype", schema::DTypeName(tensor.dtype)},
               {"shape", tensor.shape},
               {"bytes", tensor.nbytes},
               {"chunks", tensor.chunk_count}});
  if (tensor.alias_of) json["alias_of"] = JsonText(*tensor.alias_of);
  return json;
}

Json ValueJson(const core::ValueInfo& value, std::optional<uint64_t> step) {
  Json json = {{"fqn", JsonText(value.fqn)}};
  if (step) json["step"] = *step;
  json.update({{"kind", "value"},
               {"type", core::TypeName(value.value)},
               {"value", PlainJson(value.value)}});
  return json;
}

std::string ValueText(const core::Value& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return EscapeText(text != nullptr ? *text : core::FormatValue(value));
}

Json ChangeJson(const core::KeyChange& change) {
  Json json = {{"change", KindName(change.kind)},
               {"kind", change.is_tensor ? "tensor" : "value"},
               {"changed_bytes", change.changed_bytes},
               {"total_bytes", change.total_bytes}};
  if (!change.detail.empty()) json["detail"] = JsonText(change.detail);
  return json;
}

Cell ChangeCell(const core::KeyChange& change) {
  static constexpr std::array kStyles = {Style::kGreen, Style::kRed, Style::kYellow};  // by kind
  return Cell(std::string(KindName(change.kind)), kStyles[static_cast<size_t>(change.kind)]);
}

}  // namespace cairn::tools
