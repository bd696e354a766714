#pragma once
/// Finds the shards of a plan among the shards that the previous save wrote.

#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/step/contents.h"

namespace cairn::core::internal {

/// Looks up shards in key order of their tensors, which is also the order of `base`. Cost: one pass
/// over `base` for all lookups. Ownership: borrows `base`. Threads: one.
class BaseCursor {
 public:
  /// `base` may be null; then nothing is found.
  explicit BaseCursor(const SavedChunks* base) : base_(base) {}

  /// Returns the same chunks of the same box, or null. Requires that `tensor` is not before the
  /// tensor of the previous call in key order.
  const SavedChunks::Shard* Find(const TensorInfo& tensor, const PlannedShard& shard) {
    if (base_ == nullptr) return nullptr;
    while (next_ < base_->shards.size() && base_->shards[next_].fqn < tensor.fqn) ++next_;
    for (size_t i = next_; i < base_->shards.size() && base_->shards[i].fqn == tensor.fqn; ++i) {
      const SavedChunks::Shard& found = base_->shards[i];
      if (found.dtype == tensor.dtype && found.box == shard.grid.box() &&
          found.first_chunk == shard.first_chunk && found.chunks.size() == shard.chunk_count()) {
        return &found;
      }
    }
    return nullptr;
  }

 private:
  const SavedChunks* base_;
  size_t next_ = 0;
};

}  // namespace cairn::core::internal
