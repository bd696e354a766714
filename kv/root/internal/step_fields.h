#pragma once
/// The fields of a step, which its record and its entry in a root or a page have in common.
/// Threads: all functions here are pure.

#include <cairn_schema/common_generated.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/step_info.h"
#include "schema/record.h"

namespace cairn::kv::internal {

/// Decoders cut names after this length, so that a small hostile record cannot fill the memory.
inline constexpr size_t kMaxNameBytes = 512;

/// Returns at most kMaxNameBytes. Several tables of a record may refer to the same string or
/// vector, so limits of their lengths bound the memory for a hostile record.
inline std::string BoundedText(const flatbuffers::String* text) {
  return text == nullptr ? std::string() : text->str().substr(0, kMaxNameBytes);
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

/// Cuts what exceeds the limits.
inline std::vector<Metric> ReadMetrics(const MetricOffsets* stored) {
  std::vector<Metric> metrics;
  if (stored == nullptr) return metrics;
  for (const schema::Metric* metric : *stored) {
    if (metrics.size() == kMaxMetrics) break;
    std::string name = metric->name() == nullptr ? "" : metric->name()->str();
    name.resize(std::min(name.size(), kMaxNameLength));
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

/// Returns the fields of a StepRecord or a StepEntry. Cuts texts that exceed the limits.
template <typename Record>
StepInfo ReadStep(const Record& record) {
  StepInfo info{
      .step = record.step(),
      .generation = record.generation(),
      .created_unix_ns = record.created_unix_ns(),
      .world_size = record.world_size(),
      .attempt = BoundedText(record.attempt()),
      .base_step = std::nullopt,
      .tensor_count = record.tensor_count(),
      .value_count = record.value_count(),
      .chunk_count = record.chunk_count(),
      .reused_chunk_count = record.reused_chunk_count(),
      .logical_bytes = record.logical_bytes(),
      .written_bytes = record.written_bytes(),
      .structure = FromSchema(record.structure()),
      .metrics = ReadMetrics(record.metrics()),
      .note = record.note() == nullptr ? "" : record.note()->str().substr(0, kMaxNoteBytes),
      .rewritten = record.rewritten()};
  if (const auto base = record.base_step()) info.base_step = *base;
  return info;
}

}  // namespace cairn::kv::internal
