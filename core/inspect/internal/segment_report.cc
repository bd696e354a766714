#include "core/inspect/internal/segment_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace cairn::core::internal {
namespace {

constexpr std::string_view kFolder = "segments/";
/// In a storage where each request takes long, the lengths of so many files are requested.
constexpr size_t kMaxRequests = 1000;

struct Largest {
  uint64_t first = 0;
  uint64_t second = 0;
};

Result<std::unordered_map<uint64_t, Largest>> LargestUses(const kv::Snapshot& snapshot) {
  CAIRN_TRY_ASSIGN(const auto usage, snapshot.SegmentUsage());
  std::unordered_map<uint64_t, Largest> uses;
  for (const kv::Usage& use : usage) {
    Largest& largest = uses[use.segment_id];
    if (use.live_bytes > largest.first) {
      largest.second = std::exchange(largest.first, use.live_bytes);
    } else {
      largest.second = std::max(largest.second, use.live_bytes);
    }
  }
  return uses;
}

/// Returns the segments of all steps that can be read, by id.
Result<std::map<uint64_t, kv::SegmentInfo>> ReadSegments(const kv::Snapshot& snapshot,
                                                         std::vector<Error>& problems) {
  std::map<uint64_t, kv::SegmentInfo> segments;
  CAIRN_TRY_ASSIGN(const auto steps, snapshot.Steps());
  std::unordered_set<uint64_t> known;
  for (const kv::StepInfo& step : steps) {
    auto of_step = snapshot.FurtherSegmentsOf(step, known);
    if (!of_step) {
      problems.push_back(std::move(of_step).error().WithStep(step.step));
      continue;
    }
    for (kv::SegmentInfo& info : *of_step) segments.try_emplace(info.segment_id, std::move(info));
  }
  return segments;
}

/// Checks that a segment is as long as its record states, without reading it.
void CheckFile(kv::Storage& storage, const kv::SegmentInfo& segment, std::vector<Error>& problems) {
  const std::string name = std::string(kFolder) + segment.name;
  const Result<uint64_t> size = storage.Size(name);
  if (size && *size == segment.file_bytes) return;
  Error error{.code = ErrorCode::kDataLoss,
              .file = fmt::format("{}/{}", storage.address(), name),
              .step = segment.step};
  if (size) {
    error.message = fmt::format(
        "the segment has {} bytes instead of {}; kv-dump verify names what "
        "is lost",
        *size, segment.file_bytes);
  } else if (size.error().code == ErrorCode::kNotFound) {
    error.message = "the segment is missing; kv-dump verify names what is lost";
  } else {
    error = size.error();
  }
  problems.push_back(std::move(error));
}

}  // namespace

Result<ReportSpace> MeasureSegmentUse(const kv::Snapshot& snapshot, kv::Storage& storage,
                                      std::vector<Error>& problems) {
  ReportSpace space;
  auto uses = LargestUses(snapshot);
  CAIRN_TRY_ASSIGN(auto segments, ReadSegments(snapshot, problems));
  std::unordered_set<std::string> used;
  const bool is_local = storage.local_files() != nullptr;
  size_t requests = 0;
  for (auto& [id, segment] : segments) {
    const Largest largest = uses ? (*uses)[id] : Largest{.first = segment.payload_bytes};
    space.file_bytes += segment.file_bytes;
    space.payload_bytes += segment.payload_bytes;
    space.live_bytes += std::min(largest.first, segment.payload_bytes);
    space.shared_bytes += std::min(largest.second, segment.payload_bytes);
    used.insert(std::string(kFolder) + segment.name);
    if (is_local || ++requests <= kMaxRequests) CheckFile(storage, segment, problems);
    space.segments.push_back({.segment = std::move(segment),
                              .live_bytes = largest.first,
                              .shared_bytes = largest.second});
  }
  CAIRN_TRY_ASSIGN(const auto names, storage.List(kFolder));
  for (const std::string& name : names) {
    if (used.contains(name)) continue;
    ++space.unused_files;
    if (is_local || ++requests <= kMaxRequests) {
      space.unused_file_bytes += storage.Size(name).value_or(0);
    }
  }
  return space;
}

}  // namespace cairn::core::internal
