#pragma once
/// Writes the table of one step: the records that differ from an existing step, and the records of
/// the segments that the step uses, with their live bytes.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/live_bytes.h"
#include "kv/state/internal/store_state.h"
#include "kv/table/internal/overlay_writer.h"
#include "kv/table/internal/record_set.h"
#include "kv/table/internal/table_stack.h"

namespace cairn::kv::internal {

/// Threads: one. `state` outlives it. Requires that no delete removes the base until the step is
/// committed.
class StepTableWriter {
 public:
  /// Adds the step's own record. `base` is the step with which the records are compared, or null.
  static Result<StepTableWriter> Create(StoreState& state, const StepEntry* base,
                                        const StepInfo& info);

  /// Adds a record. Requires columns from kTensors to kSegments, and keys in the order of tables.
  /// Of the segments, only the records that the base lacks are needed, and those that no chunk
  /// refers to are left out.
  Result<void> Add(const TableRecord& record);
  /// As Add, for records whose chunks AddUses counts.
  Result<void> AddCounted(const TableRecord& record);
  /// Adds the records of the segments that another step uses. Requires that no delete removes that
  /// step until this one is committed.
  Result<void> AddSegmentsOf(const StepEntry& step);
  /// Adds the bytes that chunks use.
  void AddUses(const LiveBytes& uses) { live_bytes_.Add(uses); }

  /// Makes the table durable and sets the tables and the usage of `entry`. kConflict: the step
  /// uses a segment whose record neither was added nor is in the base. Nothing can be added after
  /// this.
  Result<void> Finish(StepEntry& entry);

  /// Like Finish, for a step that has all records of `base`, the step that was passed to Create,
  /// except the step's own. In place of Add and Finish.
  Result<void> FinishSame(const StepEntry& base, StepEntry& entry);

 private:
  struct Segment {
    ObjectId id;
    const TableStack* tables = nullptr;  // in stacks_; they contain the record
    std::vector<std::byte> record;       // empty: not read yet
  };

  StepTableWriter(StoreState& state, uint64_t step) : state_(&state), step_(step) {}
  Result<void> ReadSegment(uint64_t segment_id);
  Result<Segment> FindReplaced(uint64_t segment_id) const;

  StoreState* state_;
  uint64_t step_;
  std::unique_ptr<OverlayWriter> writer_;
  std::deque<TableStack> stacks_;         // of the base first, then of other steps
  std::map<uint64_t, Segment> segments_;  // by id; the step does not use all of them
  LiveBytes live_bytes_;
};

}  // namespace cairn::kv::internal
