#pragma once
/// Writes the one table that a step adds: an overlay of the tables of another step, its base.
///
/// The caller gives all records of the new step. They are compared with the base, and what
/// differs is kept in memory, with a tombstone for each key that the new step lacks. Then the rule
/// decides how many of the newest tables of the base are merged into the new one:
///
///   a table is merged if it has at most 4 times as many records as what was merged so far, or if
///   the step would have more than kMaxTables tables without that
///
/// As soon as the rule is certain to merge all tables of the base, or what differs exceeds 64 MiB,
/// the new table is a complete one: it replaces all others, contains no tombstones, and is written
/// directly from then on. So is the table of a step without a base, from the first record on.
///
/// So each table has more than 4 times as many records as the next newer one, and all together have
/// at most 4/3 as many as the oldest. As only newer records hide older ones, that is at
/// most twice the number of live records.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/live_bytes.h"
#include "kv/state/internal/store_state.h"
#include "kv/table/internal/record_run.h"
#include "kv/table/internal/table_reader.h"
#include "kv/table/internal/table_writer.h"

namespace cairn::kv::internal {

/// Counts the live bytes of each segment while the records of the chunks pass. The destructor
/// discards what was written unless Finish succeeded. Memory: at most about 64 MiB, and a few MiB
/// per table of the base. Threads: one.
///
/// `state` outlives it. Requires that no delete removes the base until the step is committed. All
/// functions return kUnavailable or kResourceExhausted if the storage cannot be read or written,
/// and kDataLoss or kNotFound if a table of the base is damaged or absent. After an error, the
/// writer can only be destroyed.
class StepTableWriter {
 public:
  /// Adds the step's own record. `base` is the step with which the records are compared, or null.
  static Result<StepTableWriter> Create(StoreState& state, const StepEntry* base,
                                        const StepInfo& info);

  /// Adds a record. Requires columns from kTensors to kSegments. Of the segments, only the records
  /// that the base lacks are needed, in any order, and those that no chunk refers to are left out.
  /// kInvalidArgument: the key of another column is not greater than the key before, or
  /// CheckRecord refuses the record.
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
  /// except the step's own. In place of Add and Finish. Compares nothing. Cost: constant, unless
  /// the new table is a complete one.
  Result<void> FinishSame(const StepEntry& base, StepEntry& entry);

 private:
  using Tables = std::span<const std::shared_ptr<const TableReader>>;
  struct Segment {
    ObjectId id;
    const TableStack* tables = nullptr;  // in stacks_; they contain the record
    std::vector<std::byte> record;       // empty: not read yet
  };

  StepTableWriter(StoreState& state, uint64_t step) : state_(&state), step_(step) {}
  /// kConflict: the step uses another segment to which records refer by the same 64 bits.
  Result<void> AddSegment(Segment segment);
  Result<void> ReadSegment(uint64_t segment_id);
  Result<Segment> FindReplaced(uint64_t segment_id) const;
  Result<void> Put(std::string_view key, std::span<const std::byte> value);
  Result<void> SkipTombstones();
  Result<void> DeleteBefore(std::string_view end);
  Result<void> AddDifference(std::string_view key, std::span<const std::byte> value);
  Result<void> WriteMerged(Tables tables, bool keep_tombstones, std::string_view last_key);
  size_t MergeDepth() const;
  Result<std::vector<TableInfo>> FinishTable();

  StoreState* state_;
  uint64_t step_;
  std::deque<TableStack> stacks_;         // of the base first, then of other steps
  std::map<uint64_t, Segment> segments_;  // by id; the step does not use all of them
  LiveBytes live_bytes_;

  // Until it is known that the table is a complete one: the last key that was compared, the first
  // live record of the base that is not compared yet, and what differed.
  Tables base_;  // in stacks_
  std::string last_key_;
  std::unique_ptr<MergeIterator> compared_;
  RecordRunWriter differences_;
  uint64_t difference_count_ = 0;
  bool has_equal_ = false;  // whether a record did not differ

  std::unique_ptr<TableWriter> writer_;  // from then on, or from Finish on
};

}  // namespace cairn::kv::internal
