#pragma once
/// Metrics and notes in records. Threads: all functions here are pure.

#include <cairn_schema/common_generated.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/base/annotations.h"

namespace cairn::kv::internal {

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
inline flatbuffers::Offset<flatbuffers::String> AddNote(flatbuffers::FlatBufferBuilder& builder,
                                                        const std::string& note) {
  if (note.empty()) return 0;
  return builder.CreateString(note);
}

/// Cuts what exceeds the limits, so that a hostile record cannot fill the memory.
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
inline std::string ReadNote(const flatbuffers::String* note) {
  return note == nullptr ? "" : note->str().substr(0, kMaxNoteBytes);
}

}  // namespace cairn::kv::internal
