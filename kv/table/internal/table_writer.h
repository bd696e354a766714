#pragma once
/// Writes a table: sorted records in RocksDB's table format, as one immutable object.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kv/base/error.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_file.h"

namespace cairn::kv::internal {

/// The key and the value of a record are at most this long together.
inline constexpr uint64_t kMaxTableRecordBytes = 1 << 30;

/// Returns the error of CheckRecord.
Error InvalidRecordError(std::string_view key, std::span<const std::byte> value);
/// kInvalidArgument: `value` is empty, or the record is too long.
inline Result<void> CheckRecord(std::string_view key, std::span<const std::byte> value) {
  if (!value.empty() && key.size() + value.size() <= kMaxTableRecordBytes) return {};
  return Fail(InvalidRecordError(key, value));
}

/// A tombstone is a record with an empty value: RocksDB's own deletions are invisible to whoever
/// reads a table by itself, but the merge of tables needs them.
///
/// Memory: a few MiB. Threads: one.
class TableWriter {
 public:
  /// Begins the table. `storage` must outlive the writer.
  static Result<std::unique_ptr<TableWriter>> Create(Storage& storage, const ObjectId& id);
  /// Discards the table unless Finish succeeded.
  ~TableWriter();

  /// kInvalidArgument: `key` is not greater than the key before, or CheckRecord refuses the record.
  /// kUnavailable, kResourceExhausted: the storage cannot be written. After any error the table can
  /// only be discarded.
  Result<void> Add(std::string_view key, std::span<const std::byte> value);
  /// Adds a record that hides the older records of `key`. Has the errors of Add.
  Result<void> AddTombstone(std::string_view key);

  /// Makes the table durable. Nothing can be added after this. kInvalidArgument: it has no records.
  /// kUnavailable, kResourceExhausted: the storage cannot be written.
  Result<TableInfo> Finish();

 private:
  struct State;
  explicit TableWriter(std::unique_ptr<State> state);
  Result<void> Put(std::string_view key, std::span<const std::byte> value);

  std::unique_ptr<State> state_;
};

}  // namespace cairn::kv::internal
