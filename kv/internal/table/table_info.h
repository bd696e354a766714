#pragma once
/// What a root states about a table.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/internal/storage/object_names.h"

namespace cairn::kv::internal {

/// The largest number of ranges of a divided table.
inline constexpr size_t kMaxTableRanges = 64;
/// The first key of a range is at most this long: a column, an FQN of at most 64 KiB, and NUL.
inline constexpr size_t kMaxRangeKeyBytes = (64 << 10) + 2;

/// A table with the records of one range of keys of a divided table.
struct TableRange {
  std::string begin;  // the first key of the range, which ends where the next one begins
  ObjectId id;
  uint64_t file_bytes = 0;
  uint64_t record_count = 0;  // including tombstones
  uint64_t digest = 0;        // XXH3-64 of the complete file
  friend bool operator==(const TableRange&, const TableRange&) = default;
};

/// A table may be *divided*: the records of the column kChunks are not in its own file but in the
/// tables of its ranges, which several ranks have written. The ranges ascend; the last one ends
/// with the column. Keys between kChunks and the first range have no record.
struct TableInfo {
  ObjectId id;
  uint64_t file_bytes = 0;
  uint64_t record_count = 0;  // including tombstones, without those of the ranges
  uint64_t digest = 0;        // XXH3-64 of the complete file
  std::vector<TableRange> ranges = {};

  /// Returns the number of records including those of the ranges.
  uint64_t total_record_count() const {
    uint64_t count = record_count;
    for (const TableRange& range : ranges) count += range.record_count;
    return count;
  }
  /// Calls `visit` with the identifier of each of the files: its own, and those of the ranges.
  template <typename Visit>
  void ForEachId(const Visit& visit) const {
    visit(id);
    for (const TableRange& range : ranges) visit(range.id);
  }
  friend bool operator==(const TableInfo&, const TableInfo&) = default;
};

/// Returns whether the ranges of a divided table ascend and are in the column kChunks.
bool AreTableRanges(std::span<const TableRange> ranges);

/// Returns the table of a range, as a table by itself.
inline TableInfo InfoOf(const TableRange& range) {
  return {.id = range.id,
          .file_bytes = range.file_bytes,
          .record_count = range.record_count,
          .digest = range.digest};
}

}  // namespace cairn::kv::internal
