#pragma once
/// The plan of the last save, for saves of the same state: training saves one again and again.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/value.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// Plans saves, and remembers the last plan of a process that saves alone. Ownership: keeps
/// pointers to the memory of the tensors, only to compare them. Memory: about 400 bytes per tensor,
/// less than a PyTorch tensor without its elements. Threads: one at a time.
class PlanCache {
 public:
  /// States with more shards are planned for each save.
  static constexpr size_t kMaxShards = 1 << 20;

  /// Returns the plan of a save of `state` as `step`, with the marks of MarkStatedUnchanged. It is
  /// valid until the next call. If the state has the structure of the one before, and its tensors
  /// are in the same memory, and its long values have the same lengths, only values that have
  /// changed are encoded again. Errors: see PlanSave and MarkStatedUnchanged.
  Result<SavePlan*> Plan(const StateDict& state, const SaveOptions& options,
                         const RankInWorld& self, uint64_t step);

  /// Returns the plan of the last call of Plan, for a caller that changes it. Requires that Plan
  /// succeeded, and that this was not called since.
  SavePlan Take();

  /// True if the last call of Plan, unless it failed, returned the records of the call before,
  /// except chunk records, and the same chunks.
  bool has_same_records() const { return has_same_records_; }
  /// True if the plan is kept for the next call.
  bool is_remembered() const { return is_remembered_; }

 private:
  Result<void> Replan(const StateDict& state, const SaveOptions& options, const RankInWorld& self);
  /// True if the state has the same tree, the same tensors in the same memory, and long values of
  /// the same lengths as the remembered one. Requires is_remembered_.
  bool HasSamePlan(const StateDict& state) const;
  /// Sets values_.
  void RememberValues(const StateDict& state);
  /// The plan is one for `state`, except for its values.
  Result<void> UpdateValues(const StateDict& state);
  Result<void> Mark(const SaveOptions& options, uint64_t step);

  // The state, except what plan_ has of it; empty if it is not remembered.
  std::vector<uint32_t> slot_;
  size_t tensor_count_ = 0;
  std::vector<Value> values_;  // long values are ChunkedValues
  std::vector<std::string> unchanged_;
  uint64_t chunk_bytes_ = 0;
  SavePlan plan_;
  bool has_same_records_ = false;
  bool is_remembered_ = false;
};

/// What a store remembers of its last save.
struct LastSave {
  PlanCache plans;
  SavedChunks chunks;  // of the plan, unless `plans` remembers none
};

}  // namespace cairn::core::internal
