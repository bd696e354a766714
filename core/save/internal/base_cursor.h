#pragma once
/// Finding what the save before wrote of a plan's pieces.

#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/step/contents.h"

namespace cairn::core::internal {

/// Looks pieces up that come in key order, as `base` has them. Threads: one.
class BaseCursor {
 public:
  /// `base` may be null: then nothing is found.
  explicit BaseCursor(const SavedChunks* base) : base_(base) {}

  /// The same piece on the same grid, or null.
  const SavedChunks::Piece* Find(const TensorInfo& tensor, const PlannedShard& piece) {
    if (base_ == nullptr) return nullptr;
    while (next_ < base_->pieces.size() && base_->pieces[next_].fqn < tensor.fqn) ++next_;
    for (size_t i = next_; i < base_->pieces.size() && base_->pieces[i].fqn == tensor.fqn; ++i) {
      const SavedChunks::Piece& found = base_->pieces[i];
      if (found.dtype == tensor.dtype && found.box == piece.grid.box() &&
          found.first_chunk == piece.first_chunk && found.chunks.size() == piece.chunk_count()) {
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
