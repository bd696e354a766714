#pragma once
/// The tables of one step, and the tables that are kept open between reads.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/recently_used.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {

inline constexpr size_t kMaxTables = 8;

/// The tables, newest first: the first record of a key counts, and a tombstone hides the later
/// ones. Ownership: shares the tables with the stacks of other steps. Threads: many may call const
/// members at once.
///
/// All functions return kDataLoss if a table is damaged, and kUnavailable or kNotFound if the
/// storage cannot be read.
class TableStack {
 public:
  /// Creates the stack of a step without records.
  TableStack() = default;
  /// Requires at most kMaxTables tables, newest first.
  explicit TableStack(std::vector<std::shared_ptr<const TableReader>> tables);

  std::span<const std::shared_ptr<const TableReader>> tables() const { return tables_; }

  /// Returns nothing if there is no such record. The value is aligned to 8 bytes.
  Result<std::optional<std::vector<std::byte>>> Get(std::string_view key) const;

  /// Receives a record. The value is aligned to 8 bytes and valid only during the call. Returns
  /// whether to continue.
  using Visit = std::function<Result<bool>(std::string_view key, std::span<const std::byte> value)>;
  /// Calls `visit` with the records whose keys begin with `prefix`, in order, until it returns
  /// false. Returns the errors of `visit`.
  Result<void> Scan(std::string_view prefix, const Visit& visit) const;
  /// Does so with records whose keys are not less than `first_key`, which begins with `prefix`.
  Result<void> ScanFrom(std::string_view first_key, std::string_view prefix,
                        const Visit& visit) const;
  /// Calls `visit` with the records of the contents of the step, also of columns that this build
  /// does not know: all columns from kTensors on and before kSegments.
  Result<void> ScanContents(const Visit& visit) const;

 private:
  Result<void> ScanUntil(std::string_view first_key, std::string_view end, TableAccess access,
                         const Visit& visit) const;

  std::vector<std::shared_ptr<const TableReader>> tables_;
};

/// A cache of open tables. Steps that share tables share their readers. Threads: safe.
class OpenTables {
 public:
  explicit OpenTables(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}

  /// Opens the tables of a step, newest first. kNotFound: one does not exist. kDataLoss: one is
  /// damaged, or there are more than kMaxTables.
  Result<TableStack> OpenStack(std::span<const TableInfo> infos);
  /// Drops the table from the cache, before it is removed.
  void Forget(const ObjectId& id);
  /// Drops the tables whose files another process has removed.
  void DropRemoved();

 private:
  using Table = std::shared_ptr<const TableReader>;
  Result<Table> Open(const TableInfo& info);

  const std::shared_ptr<Storage> storage_;
  Mutex mutex_;
  RecentlyUsed<ObjectId, Table, 64> open_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
