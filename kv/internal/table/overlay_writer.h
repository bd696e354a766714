#pragma once
/// Writes a table that is placed over tables whose number is known in advance: it contains what
/// differs from them, and a tombstone for each key that only they have.
///
/// Unlike DeltaWriter, it does not decide which tables are merged into the new one: those are left
/// out of `below`, and their records are compared with nothing. Records are therefore written as
/// they are added, and several writers can write disjoint ranges of one step.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"
#include "kv/internal/table/merge_iterator.h"
#include "kv/internal/table/table_stack.h"
#include "kv/internal/table/table_writer.h"

namespace cairn::kv::internal {

/// Keys from `begin` on that are less than `end`.
struct KeyRange {
  std::string begin;
  std::string end;  // empty: all greater keys
};

/// Memory: a few MiB, and per table below. Threads: one.
///
/// All functions return kUnavailable or kResourceExhausted if the storage cannot be read or
/// written, and kDataLoss or kNotFound if a table below is damaged or absent. After an error, the
/// writer can only be destroyed.
class OverlayWriter {
 public:
  /// `ranges`, which ascend and are disjoint, are those of all keys that are added; records of
  /// `below` outside of them are ignored. `storage` must outlive the writer.
  static Result<std::unique_ptr<OverlayWriter>> Create(Storage& storage, const ObjectId& id,
                                                       const TableStack& below,
                                                       std::vector<KeyRange> ranges,
                                                       RecordSource source);

  /// Adds a record of the new step, whose key is in one of the ranges. kInvalidArgument: `key` is
  /// not greater than the key before, or CheckRecord refuses the record.
  Result<void> Add(std::string_view key, std::span<const std::byte> value);
  /// As Add, for a record that is not compared. No other record may follow.
  Result<void> AddLast(std::string_view key, std::span<const std::byte> value);

  /// Makes the table durable. If it has no records, nothing was written.
  Result<TableInfo> Finish();

 private:
  OverlayWriter(Storage& storage, const ObjectId& id, std::vector<KeyRange> ranges,
                RecordSource source);
  Result<void> EnterRange(size_t range);
  Result<void> SettleBelow();
  Result<void> DeleteBefore(std::optional<std::string_view> end);
  Result<TableWriter*> Writer();

  Storage& storage_;
  const ObjectId id_;
  const std::vector<KeyRange> ranges_;
  const RecordSource source_;
  std::vector<std::shared_ptr<const TableReader>> tables_;
  std::unique_ptr<MergeIterator> below_;  // the first live record that is not compared; or null
  size_t range_ = 0;                      // of this record
  std::unique_ptr<TableWriter> writer_;   // from the first record on
};

}  // namespace cairn::kv::internal
