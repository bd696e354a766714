#pragma once
/// Reads several tables as one.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {

/// The newest record of each key of some tables, in the order of keys, tombstones (empty values)
/// included. Must not outlive the tables. Cost: about one comparison of keys per record as long as
/// the records come from one table. Threads: one.
class MergeIterator {
 public:
  /// `tables` are newest first. `end`: see TableReader::NewIterator.
  MergeIterator(std::span<const std::shared_ptr<const TableReader>> tables, TableAccess access,
                std::string_view end = {});

  // Each returns kDataLoss if a table is damaged, kUnavailable or kNotFound if the storage cannot
  // be read.
  /// Moves to the first record whose key is not less than `key`.
  Result<void> Seek(std::string_view key);
  /// Moves to the next record. Requires Valid().
  Result<void> Next();

  /// Returns whether there is a record at this position.
  bool Valid() const { return !order_.empty(); }
  // Require Valid(). The results are valid until the next call of Seek or Next.
  std::string_view key() const { return sources_[order_.front()]->key(); }
  std::span<const std::byte> value() const { return sources_[order_.front()]->value(); }

 private:
  bool Precedes(size_t a, size_t b) const;
  void Insert(size_t source);
  Result<void> Advance(size_t position);

  std::vector<std::unique_ptr<TableIterator>> sources_;  // newest first
  std::vector<size_t> order_;  // sources that have records, by key, then newest first
};

}  // namespace cairn::kv::internal
