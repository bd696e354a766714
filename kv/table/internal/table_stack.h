#pragma once
/// The tables of one step.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
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
  /// Opens the tables, newest first. kNotFound: one does not exist. kDataLoss: one is damaged, or
  /// there are more than kMaxTables.
  static Result<TableStack> Open(const std::shared_ptr<Storage>& storage,
                                 std::span<const TableInfo> infos);

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

 private:
  std::vector<std::shared_ptr<const TableReader>> tables_;
};

}  // namespace cairn::kv::internal
