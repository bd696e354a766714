#pragma once
/// The fields of a step, which its record and its entry in a root or a page have in common.
/// Threads: all functions here are pure.

#include <cairn_schema/common_generated.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "schema/record.h"

namespace cairn::kv::internal {

/// Length of the longest name in a record: of a host, session, attempt or object.
inline constexpr size_t kMaxNameBytes = 512;

/// Returns a text of a record; "" if it is absent. kDataLoss: it is longer than the limit. Several
/// tables of a record may refer to the same string, so this bounds the memory for a hostile record.
inline Result<std::string> BoundedText(const flatbuffers::String* text,
                                       size_t max_bytes = kMaxNameBytes) {
  if (text == nullptr) return std::string();
  if (text->size() <= max_bytes) return text->str();
  return Fail(ErrorCode::kDataLoss,
              "a record is damaged: a text is longer than " + std::to_string(max_bytes) + " bytes");
}

inline Digest FromSchema(const schema::Digest* digest) {
  return digest == nullptr ? Digest{} : Digest{.lo = digest->lo(), .hi = digest->hi()};
}

using MetricOffsets = flatbuffers::Vector<flatbuffers::Offset<schema::Metric>>;

/// Returns null for none, so that a record without metrics does not grow.
inline flatbuffers::Offset<MetricOffsets> AddMetrics(flatbuffers::FlatBufferBuilder& builder,
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
inline Result<std::vector<Metric>> ReadMetrics(const MetricOffsets* stored) {
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

/// Begins a StepRecord or a StepEntry with the fields of `info`. The caller, which must have
/// created what else the record refers to, adds the other fields and finishes it.
template <typename RecordBuilder>
RecordBuilder BeginStep(flatbuffers::FlatBufferBuilder& builder, const StepInfo& info) {
  const auto attempt = builder.CreateString(info.attempt);
  const schema::Digest structure(info.structure.lo, info.structure.hi);
  const auto metrics = AddMetrics(builder, info.metrics);
  const auto note = info.note.empty() ? 0 : builder.CreateString(info.note);
  RecordBuilder record(builder);
  if constexpr (requires { record.add_version(schema::kRecordVersion); }) {
    record.add_version(schema::kRecordVersion);
  }
  record.add_step(info.step);
  record.add_generation(info.generation);
  record.add_created_unix_ns(info.created_unix_ns);
  record.add_world_size(info.world_size);
  record.add_attempt(attempt);
  if (info.base_step) record.add_base_step(*info.base_step);
  record.add_tensor_count(info.tensor_count);
  record.add_value_count(info.value_count);
  record.add_chunk_count(info.chunk_count);
  record.add_reused_chunk_count(info.reused_chunk_count);
  record.add_logical_bytes(info.logical_bytes);
  record.add_written_bytes(info.written_bytes);
  record.add_structure(&structure);
  record.add_metrics(metrics);
  record.add_note(note);
  record.add_rewritten(info.rewritten);
  return record;
}

/// Returns the fields of a StepRecord or a StepEntry. kDataLoss: a limit is exceeded.
template <typename Record>
Result<StepInfo> ReadStep(const Record& record) {
  StepInfo info{.step = record.step(),
                .generation = record.generation(),
                .created_unix_ns = record.created_unix_ns(),
                .world_size = record.world_size(),
                .base_step = std::nullopt,
                .tensor_count = record.tensor_count(),
                .value_count = record.value_count(),
                .chunk_count = record.chunk_count(),
                .reused_chunk_count = record.reused_chunk_count(),
                .logical_bytes = record.logical_bytes(),
                .written_bytes = record.written_bytes(),
                .structure = FromSchema(record.structure()),
                .rewritten = record.rewritten()};
  CAIRN_TRY_ASSIGN(info.attempt, BoundedText(record.attempt()));
  CAIRN_TRY_ASSIGN(info.metrics, ReadMetrics(record.metrics()));
  CAIRN_TRY_ASSIGN(info.note, BoundedText(record.note(), kMaxNoteBytes));
  if (const auto base = record.base_step()) info.base_step = *base;
  return info;
}

}  // namespace cairn::kv::internal
