#pragma once
/// Writes the one table that a save adds.
///
/// The caller gives all records of the new step. They are compared with those of the base, and what
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
/// at most 4/3 as many as the oldest. As only newer records hide those of the oldest, that is at
/// most twice the number of live records.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/table/internal/merge_iterator.h"
#include "kv/table/internal/record_buffer.h"
#include "kv/table/internal/table_stack.h"
#include "kv/table/internal/table_writer.h"

namespace cairn::kv::internal {

/// Returns how many tables of a base are merged into the new one by this rule. `record_counts` are
/// those of the tables, newest first.
size_t MergeDepth(std::span<const uint64_t> record_counts, uint64_t differing_records);

/// Memory: at most about 64 MiB, and a few MiB per table of the base. Threads: one.
///
/// All functions return kUnavailable or kResourceExhausted if the storage cannot be read or
/// written, and kDataLoss or kNotFound if a table of the base is damaged or absent. After an error,
/// the writer can only be destroyed.
class DeltaWriter {
 public:
  /// `id` is that of the table to be written. `storage` must outlive the writer. With `last_key`,
  /// the key of the record that Finish adds, records of the base from this key on are ignored.
  /// `source` is that of the records that are added.
  static Result<std::unique_ptr<DeltaWriter>> Create(Storage& storage, const ObjectId& id,
                                                     const TableStack& base,
                                                     std::string last_key = {},
                                                     RecordSource source = RecordSource::kTables);
  /// Discards what was written unless Finish succeeded.
  ~DeltaWriter();

  /// Adds a record of the new step. kInvalidArgument: `key` is not greater than the key before, or
  /// CheckRecord refuses the record.
  Result<void> Add(std::string_view key, std::span<const std::byte> value);

  /// Adds all records of the base whose keys are greater than `key`, without a comparison. Requires
  /// that no greater key was added. Only Finish may follow. Cost: constant, unless the new table is
  /// a complete one.
  Result<void> KeepAfter(std::string_view key);

  /// Makes the new table durable and returns the tables of the new step, newest first. If nothing
  /// differs from the base, they are those of the base and nothing was written. If the new step has
  /// no records, there are none.
  ///
  /// With `last_record`, the new table contains, in addition, the record that it returns for the
  /// tables of the base which the new step keeps, under the `last_key` of Create, which must be
  /// greater than all other keys. The table is then always written.
  using LastRecord = std::function<std::vector<std::byte>(std::span<const TableInfo> kept)>;
  Result<std::vector<TableInfo>> Finish(const LastRecord& last_record = nullptr);

 private:
  DeltaWriter(Storage& storage, const ObjectId& id, const TableStack& base, std::string last_key);
  bool IsBeforeEnd(std::string_view key) const;
  bool HasCompared() const;
  Result<void> CheckOrder(std::string_view key);
  Result<void> SkipTombstones();
  Result<void> DeleteBefore(std::optional<std::string_view> end);
  Result<void> AddDifference(std::string_view key, std::span<const std::byte> value);
  Result<void> BecomeComplete(std::string_view last_key);
  Result<void> WriteMerged(std::span<const std::shared_ptr<const TableReader>> tables,
                           bool keep_tombstones, std::optional<std::string_view> last_key);
  size_t DepthOfMerge() const { return MergeDepth(record_counts_, differences_.record_count()); }

  Storage& storage_;
  const ObjectId id_;
  const std::vector<std::shared_ptr<const TableReader>> base_;
  std::vector<uint64_t> record_counts_;  // of base_
  const std::string end_key_;            // empty: there is none
  std::optional<std::string> last_key_;  // that was compared

  // Until it is known that the table is a complete one: the first live record of the base that is
  // not compared yet, and what differed.
  std::unique_ptr<MergeIterator> compared_;
  RecordBuffer differences_;
  bool has_equal_ = false;  // whether a record did not differ

  std::unique_ptr<TableWriter> writer_;  // from then on, or from Finish on
};

}  // namespace cairn::kv::internal
