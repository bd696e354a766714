#pragma once
/// Writes the one table that a save adds: an overlay of the tables of another step, its base.
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
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/table/internal/merge_iterator.h"
#include "kv/table/internal/record_run.h"
#include "kv/table/internal/table_stack.h"
#include "kv/table/internal/table_writer.h"

namespace cairn::kv::internal {

/// Memory: at most about 64 MiB, and a few MiB per table of the base. Threads: one.
///
/// All functions return kUnavailable or kResourceExhausted if the storage cannot be read or
/// written, and kDataLoss or kNotFound if a table of the base is damaged or absent. After an error,
/// the writer can only be destroyed.
class OverlayWriter {
 public:
  /// Begins the table `id`. `storage` must outlive the writer. `last_key` is the
  /// key of the record that Finish adds. It must be greater than all other keys. Records of the
  /// base from this key on are ignored.
  static Result<std::unique_ptr<OverlayWriter>> Create(Storage& storage, const ObjectId& id,
                                                       const TableStack& base,
                                                       std::string last_key);
  /// Discards what was written unless Finish succeeded.
  ~OverlayWriter();

  /// Adds a record of the new step. kInvalidArgument: `key` is not greater than the key before, or
  /// CheckRecord refuses the record.
  Result<void> Add(std::string_view key, std::span<const std::byte> value);

  /// Adds all records of the base whose keys are greater than `key`, without a comparison. Requires
  /// that no greater key was added. Only Finish may follow. Cost: constant, unless the new table is
  /// a complete one.
  Result<void> KeepAfter(std::string_view key);

  /// Returns a record about the tables of the base that the new step keeps, newest first.
  using LastRecord = std::function<std::vector<std::byte>(std::span<const TableInfo> kept)>;
  /// Adds the last record, makes the new table durable, and returns the tables of the new step,
  /// newest first.
  Result<std::vector<TableInfo>> Finish(const LastRecord& last_record);

 private:
  OverlayWriter(Storage& storage, const ObjectId& id, const TableStack& base, std::string last_key);
  Result<void> SkipTombstones();
  Result<void> DeleteBefore(std::string_view end);
  Result<void> AddDifference(std::string_view key, std::span<const std::byte> value);
  Result<void> WriteMerged(std::span<const std::shared_ptr<const TableReader>> tables,
                           bool keep_tombstones, std::string_view last_key);
  size_t MergeDepth() const;

  Storage& storage_;
  const ObjectId id_;
  const std::vector<std::shared_ptr<const TableReader>> base_;
  const std::string end_key_;

  // Until it is known that the table is a complete one: the last key that was compared, the first
  // live record of the base that is not compared yet, and what differed.
  std::string last_key_;
  std::unique_ptr<MergeIterator> compared_;
  RecordRunWriter differences_;
  uint64_t difference_count_ = 0;
  bool has_equal_ = false;  // whether a record did not differ

  std::unique_ptr<TableWriter> writer_;  // from then on, or from Finish on
};

}  // namespace cairn::kv::internal
