#pragma once
/// Plans of saves whose callers state what has not changed, so that little is read: the plan would
/// take most of the time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/save/internal/save_plan.h"
#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"
#include "kv/error.h"

namespace cairn::core::internal {

/// Remembers the plan of the last save with SaveOptions::unchanged. Ownership: keeps pointers to
/// the memory of the tensors, only to compare them. Memory: about 2 KiB per tensor. Threads: one at
/// a time.
class PlanCache {
 public:
  /// States with more shards are planned for each save.
  static constexpr size_t kMaxShards = 1 << 16;

  /// Returns the plan of a save of `state` as `step`, with the marks of MarkStatedUnchanged. If the
  /// state has the structure of the one before, and its tensors are in the same memory, only values
  /// that have changed are encoded again. Errors: those of PlanSave and MarkStatedUnchanged.
  Result<SavePlan> Plan(const StateDict& state, const SaveOptions& options, const RankInWorld& self,
                        uint64_t step);

 private:
  struct Remembered {
    StateDict state;
    std::vector<std::string> unchanged;
    uint64_t chunk_bytes = 0;
    SavePlan plan;  // with marks, not changed by a save
  };

  Result<void> UpdateValues(const StateDict& state);

  std::optional<Remembered> last_;
};

}  // namespace cairn::core::internal
