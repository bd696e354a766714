#include "core/inspect/space.h"

#include <map>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/tensor_records.h"
#include "kv/read/snapshot.h"

namespace cairn::core {
namespace {

/// Returns the first `depth` elements of an FQN; all of it if `depth` is 0.
std::string_view PrefixOf(std::string_view fqn, uint64_t depth) {
  size_t end = 0;
  for (uint64_t element = 0; element < depth; ++element) {
    end = fqn.find('.', end);
    if (end == std::string_view::npos) return fqn;
    ++end;
  }
  return depth == 0 ? fqn : fqn.substr(0, end - 1);
}

class SpaceMeter {
 public:
  SpaceMeter(const internal::StepView& view, uint64_t depth) : view_(view), depth_(depth) {}

  /// Finds the segments that the step has written, and the values whose bytes are chunks.
  Result<void> FindSegmentsAndValues() {
    CAIRN_TRY_ASSIGN(long_values_, internal::FindLongValues(*view_.snapshot, view_.step));
    CAIRN_TRY_ASSIGN(const auto segments, view_.snapshot->SegmentsOf(view_.step));
    for (const kv::SegmentInfo& segment : segments) {
      if (segment.step == view_.step.step) new_segments_.insert(segment.segment_id);
    }
    return {};
  }

  void Add(const internal::DecodedChunk& decoded) {
    const ChunkInfo& chunk = decoded.info;
    SpaceUse& use = UseOf(PrefixOf(decoded.fqn, depth_));
    ++use.chunks;
    use.tensors += decoded.fqn != last_fqn_ && !long_values_.contains(decoded.fqn);
    last_fqn_ = decoded.fqn;
    const kv::ChunkExtents stored = chunk.stored();
    use.compressed_chunks += stored.is_compressed();
    use.delta_chunks += chunk.deltas.size() > (stored.is_compressed() ? 1 : 0);
    use.logical_bytes += chunk.length_bytes();
    stored.ForEach([&](const kv::Extent& extent) {
      use.stored_bytes += extent.length_bytes;
      if (new_segments_.contains(extent.segment_id)) use.new_bytes += extent.length_bytes;
    });
  }

  std::vector<SpaceUse> Take() {
    std::vector<SpaceUse> uses;
    uses.reserve(uses_.size());
    for (auto& [prefix, use] : uses_) uses.push_back(std::move(use));
    return uses;
  }

 private:
  /// Keys of one prefix may be apart: "a-b" is between "a" and "a.b".
  SpaceUse& UseOf(std::string_view prefix) {
    if (last_use_ == nullptr || last_use_->prefix != prefix) {
      const auto found = uses_.try_emplace(std::string(prefix)).first;
      last_use_ = &found->second;
      last_use_->prefix = found->first;
    }
    return *last_use_;
  }

  const internal::StepView& view_;
  const uint64_t depth_;
  std::string last_fqn_;
  std::set<std::string, std::less<>> long_values_;     // FQNs
  std::unordered_set<uint64_t> new_segments_;          // ids
  std::map<std::string, SpaceUse, std::less<>> uses_;  // by prefix
  SpaceUse* last_use_ = nullptr;                       // in uses_
};

}  // namespace

Result<std::vector<SpaceUse>> MeasureSpace(const kv::Store& store, uint64_t step,
                                           const KeyPatterns& patterns, uint64_t depth,
                                           const Progress& progress) {
  CAIRN_TRY_ASSIGN(const internal::StepView view, internal::FindView(store, step));
  constexpr uint64_t kReported = 1024;  // chunks at a time
  SpaceMeter meter(view, depth);
  CAIRN_TRY(meter.FindSegmentsAndValues());
  internal::ProgressMeter done(progress, view.step.chunk_count);
  uint64_t chunks = 0;
  const auto add = [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
    if (++chunks % kReported == 0) CAIRN_TRY(done.Add(kReported));
    if (!patterns.Matches(key.substr(0, key.find('\0')))) return true;
    CAIRN_TRY_ASSIGN(const internal::DecodedChunk decoded, internal::DecodeChunk(key, record));
    meter.Add(decoded);
    return true;
  };
  for (const std::string& prefix : patterns.ScanPrefixes()) {
    CAIRN_TRY(view.snapshot->Scan(kv::Column::kChunks, view.step, prefix, add));
  }
  return meter.Take();
}

}  // namespace cairn::core
