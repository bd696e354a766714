#pragma once
/// How many bytes of each segment the chunks of a step use.

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "kv/base/extents.h"

namespace cairn::kv::internal {

/// Threads: one.
class LiveBytes {
 public:
  LiveBytes() = default;
  LiveBytes(LiveBytes&&) = default;
  LiveBytes& operator=(LiveBytes&&) = default;

  void Add(uint64_t segment_id, uint64_t length_bytes) {
    if (last_ == nullptr || last_->first != segment_id) {
      last_ = &*by_segment_.try_emplace(segment_id, 0).first;
    }
    last_->second += length_bytes;
  }
  void Add(const ChunkExtents& extents) {
    extents.ForEach([&](const Extent& extent) { Add(extent.segment_id, extent.length_bytes); });
  }
  void Add(const LiveBytes& other) {
    for (const auto& [segment_id, length_bytes] : other.by_segment_) Add(segment_id, length_bytes);
  }

  /// Returns the bytes by segment id, in the order of the ids.
  std::map<uint64_t, uint64_t> Sorted() const { return {by_segment_.begin(), by_segment_.end()}; }

 private:
  std::unordered_map<uint64_t, uint64_t> by_segment_;
  std::pair<const uint64_t, uint64_t>* last_ = nullptr;  // in by_segment_
};

}  // namespace cairn::kv::internal
