#include "kv/root/internal/step_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/record_check.h"
#include "schema/record.h"

namespace cairn::kv::internal {
namespace {

using MetricOffsets = flatbuffers::Vector<flatbuffers::Offset<schema::Metric>>;

/// Returns null for none, so that a record without metrics does not grow.
flatbuffers::Offset<MetricOffsets> AddMetrics(flatbuffers::FlatBufferBuilder& builder,
                                              const std::vector<Metric>& metrics) {
  if (metrics.empty()) return 0;
  std::vector<flatbuffers::Offset<schema::Metric>> offsets;
  for (const Metric& metric : metrics) {
    const auto name = builder.CreateString(metric.name);
    offsets.push_back(schema::CreateMetric(builder, name, std::bit_cast<uint64_t>(metric.value)));
  }
  return builder.CreateVector(offsets);
}

/// kDataLoss: there are too many, or a name is too long.
Result<std::vector<Metric>> ReadMetrics(const MetricOffsets* stored) {
  std::vector<Metric> metrics;
  if (stored == nullptr) return metrics;
  if (stored->size() > kMaxMetrics) {
    return Fail(ErrorCode::kDataLoss, "a record is damaged: a step has too many metrics");
  }
  for (const schema::Metric* metric : *stored) {
    CAIRN_TRY_ASSIGN(std::string name, BoundedText(metric->name(), kMaxNameLength));
    metrics.push_back({.name = std::move(name), .value = std::bit_cast<double>(metric->bits())});
  }
  return metrics;
}

}  // namespace

Result<std::string> BoundedText(const flatbuffers::String* text, size_t max_bytes) {
  if (text == nullptr) return std::string();
  if (text->size() <= max_bytes) return text->str();
  return Fail(ErrorCode::kDataLoss,
              "a record is damaged: a text is longer than " + std::to_string(max_bytes) + " bytes");
}

flatbuffers::Offset<schema::StepSummary> AddSummary(flatbuffers::FlatBufferBuilder& builder,
                                                    const StepInfo& info) {
  const auto attempt = builder.CreateString(info.attempt);
  const schema::Digest structure(info.structure.lo, info.structure.hi);
  const auto metrics = AddMetrics(builder, info.metrics);
  const auto note = info.note.empty() ? 0 : builder.CreateString(info.note);
  const auto base_step = info.base_step ? flatbuffers::Optional<uint64_t>(*info.base_step)
                                        : flatbuffers::Optional<uint64_t>();
  flatbuffers::Offset<schema::ParentStep> parent;
  if (info.parent) {
    parent = schema::CreateParentStep(builder, info.parent->step,
                                      builder.CreateString(info.parent->attempt));
  }
  flatbuffers::Offset<flatbuffers::Vector<uint8_t>> run;
  if (info.run) {
    run =
        builder.CreateVector(reinterpret_cast<const uint8_t*>(info.run->data()), info.run->size());
  }
  return schema::CreateStepSummary(builder, schema::kRecordVersion, info.step, info.generation,
                                   info.created_unix_ns, info.world_size, attempt, base_step,
                                   info.tensor_count, info.value_count, info.chunk_count,
                                   info.reused_chunk_count, info.logical_bytes, info.written_bytes,
                                   &structure, info.rewritten, metrics, note, parent, run);
}

Result<StepInfo> ReadSummary(const schema::StepSummary* summary) {
  if (summary == nullptr) {
    return Fail(ErrorCode::kDataLoss, "a record is damaged: an entry has no summary");
  }
  if (summary->version() > schema::kRecordVersion) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("a summary has version {}, this build reads {}; use a newer Cairn",
                            summary->version(), schema::kRecordVersion));
  }
  CAIRN_TRY(CheckDigestKind(summary->digest_kind(), "the structure of a step"));
  StepInfo info{.step = summary->step(),
                .generation = summary->generation(),
                .created_unix_ns = summary->created_unix_ns(),
                .world_size = summary->world_size(),
                .tensor_count = summary->tensor_count(),
                .value_count = summary->value_count(),
                .chunk_count = summary->chunk_count(),
                .reused_chunk_count = summary->reused_chunk_count(),
                .logical_bytes = summary->logical_bytes(),
                .written_bytes = summary->written_bytes(),
                .rewritten = summary->rewritten()};
  if (const schema::Digest* digest = summary->structure()) {
    info.structure = {.lo = digest->lo(), .hi = digest->hi()};
  }
  CAIRN_TRY_ASSIGN(info.attempt, BoundedText(summary->attempt()));
  CAIRN_TRY_ASSIGN(info.metrics, ReadMetrics(summary->metrics()));
  CAIRN_TRY_ASSIGN(info.note, BoundedText(summary->note(), kMaxNoteBytes));
  if (const auto base = summary->base_step()) info.base_step = *base;
  if (const schema::ParentStep* parent = summary->parent()) {
    info.parent = ParentStep{.step = parent->step()};
    CAIRN_TRY_ASSIGN(info.parent->attempt, BoundedText(parent->attempt()));
  }
  if (const auto* run = summary->run()) {
    if (run->size() != info.run.emplace().size()) {
      return Fail(ErrorCode::kDataLoss, "a record is damaged: a run does not have 16 bytes");
    }
    std::ranges::copy(std::as_bytes(std::span(run->data(), run->size())), info.run->begin());
  }
  return info;
}

}  // namespace cairn::kv::internal
