#pragma once
/// A record in memory of the chunks that a save wrote. The next save uses it to find out what has
/// not changed before it copies anything.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "core/save/internal/save_plan.h"
#include "kv/base/digest.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {

/// The chunks that a save wrote. Memory: about 24 bytes per chunk, and the layout, which the plan
/// of the next save of the same state shares.
struct SavedChunks {
  struct Chunk {
    kv::Digest digest;
    bool reused = false;  // the base of that save had the same bytes
    uint8_t deltas = 0;   // number of the chunk's deltas
  };
  kv::StepInfo step;
  uint64_t chunk_bytes = 0;
  bool has_statistics = false;               // the records have them
  bool has_records = false;                  // the step has records of applications
  std::shared_ptr<const PlanLayout> layout;  // shared with plans; null if nothing was saved
  std::vector<Chunk> chunks;                 // one per chunk of the layout
  std::vector<ShardSource> sources;          // of the plan; empty if all are in host memory
  /// Page digests of the shards in device memory, by device, kept there; shared with the save that
  /// compares with them.
  std::map<int, DeviceMemory> page_digests;
};

/// Looks up the shards of a plan in the order of the plan, which is also the order of `base`. Cost:
/// one pass over `base` for all lookups. Ownership: borrows both. Threads: one.
class BaseCursor {
 public:
  /// `base` may be null; then nothing is found.
  BaseCursor(const SavedChunks* base, const PlanLayout& layout)
      : base_(base != nullptr ? base->layout.get() : nullptr), layout_(layout) {}

  /// Returns the shard of the base with the same box of the same tensor and the same chunks, or
  /// null. Requires that `shard` is not before the shard of the previous call.
  const PlannedShard* Find(size_t shard) {
    if (base_ == nullptr) return nullptr;
    if (base_ == &layout_) return &base_->shards[shard];
    const PlannedShard& wanted = layout_.shards[shard];
    const TensorEntry& tensor = layout_.tensors[wanted.tensor];
    const auto fqn_at = [&](size_t i) { return base_->tensors[base_->shards[i].tensor].fqn; };
    while (next_ < base_->shards.size() && fqn_at(next_) < tensor.fqn) ++next_;
    for (size_t i = next_; i < base_->shards.size() && fqn_at(i) == tensor.fqn; ++i) {
      const PlannedShard& found = base_->shards[i];
      if (base_->tensors[found.tensor].dtype == tensor.dtype &&
          std::ranges::equal(found.box.numbers, wanted.box.numbers) &&
          found.end_chunk - found.first_chunk == wanted.end_chunk - wanted.first_chunk) {
        return &found;
      }
    }
    return nullptr;
  }

 private:
  const PlanLayout* base_;
  const PlanLayout& layout_;
  size_t next_ = 0;
};

}  // namespace cairn::core::internal
