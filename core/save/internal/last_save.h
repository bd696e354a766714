#pragma once
/// What a store remembers of its last save, so that a save of the same state costs little more than
/// the digests of its bytes.

#include <cstddef>

#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// The last save of one process alone. Ownership: keeps pointers to the memory of the tensors, only
/// to compare them. Memory: about 1 KiB per tensor. Threads: one at a time.
class LastSave {
 public:
  /// States with more shards are planned for each save.
  static constexpr size_t kMaxShards = 1 << 16;

  /// Plans a save of `state`, or returns the plan of the last save if the state has the same
  /// structure and values, and tensors in the same memory. The plan is valid until the next call.
  /// After an error, this object can only be destroyed. Errors: those of PlanSave.
  Result<SavePlan*> Plan(const StateDict& state, const SaveOptions& options,
                         const RankInWorld& self);

  /// True if the plan has the same records as the save before, except those of chunks, and the same
  /// chunks. What that save wrote is in chunks().
  bool has_same_records() const { return has_same_records_; }

  /// Where the save of the plan is to be recorded; null if it is not to be remembered.
  SavedChunks* chunks() { return is_remembered_ ? &chunks_ : nullptr; }

 private:
  StateDict state_;
  SavePlan plan_;
  SavedChunks chunks_;
  bool has_same_records_ = false;
  bool is_remembered_ = false;
};

}  // namespace cairn::core::internal
