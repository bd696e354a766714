#pragma once
/// Reads one table, or the tables of one step as one, and keeps tables open between reads.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/recently_used.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_block.h"
#include "kv/table/internal/table_file.h"

namespace cairn::kv::internal {

class TableReader;

/// The purpose of an iterator.
enum class TableAccess {
  kLookup,  // reads only the requested bytes, and keeps the blocks for the next lookups
  kBulk,    // reads far ahead, and does not displace what lookups use
};

/// A position among the records of a table, tombstones (empty values) included. Must not outlive
/// its TableReader. Memory: two blocks and what is read ahead, at most 512 KiB. Threads: one.
class TableIterator {
 public:
  // Each returns kDataLoss if a block is damaged, kUnavailable or kNotFound if the storage cannot
  // be read. Then there is no record at this position.
  /// Moves to the first record whose key is not less than `key`.
  Result<void> Seek(std::string_view key);
  /// Moves to the next record. Has the errors and the cost of Seek. Requires Valid().
  Result<void> Next() {
    is_valid_ = records_.Next();
    return is_valid_ && !ends_here_ ? Result<void>() : Settle();
  }

  /// Returns whether there is a record at this position.
  bool Valid() const { return is_valid_; }
  // Require Valid(). The results are valid until the next call of Seek or Next.
  std::string_view key() const { return records_.key(); }
  std::span<const std::byte> value() const { return records_.value(); }

 private:
  friend class TableReader;
  TableIterator(const TableReader& table, TableAccess access, std::string_view end)
      : table_(table), access_(access), end_(end) {}

  /// Moves to the next block if there is no record at this position, and ends at end_.
  Result<void> Settle();
  Result<void> OpenPartition();
  Result<void> OpenRecords();
  /// Returns the bytes from the block at this position on that are read together.
  uint64_t ReadAheadBytes() const;

  const TableReader& table_;
  const TableAccess access_;
  const std::string end_;  // empty: none
  BlockCursor top_{BlockCursor::Kind::kIndex};
  BlockCursor partition_{BlockCursor::Kind::kIndex};
  BlockCursor records_{BlockCursor::Kind::kRecords};
  bool is_valid_ = false;
  bool ends_here_ = false;                             // records from end_ on may be in this block
  std::shared_ptr<const TableBlock> partition_block_;  // shared with the reader's cache
  std::shared_ptr<const TableBlock> records_block_;    // shared with it; null: read ahead
  uint64_t max_ahead_bytes_ = 0;
  BlockMemory ahead_memory_;
  std::span<const std::byte> ahead_;  // stored blocks
  uint64_t ahead_offset_bytes_ = 0;   // in the file
  BlockMemory decompressed_;
};

/// An open table. Memory: the top of its index, what TableFile keeps, and at most 1 MiB of blocks
/// of records and of the index that were read lately.
/// Threads: many may call const members at once.
class TableReader {
 public:
  /// kNotFound: there is no such table. kDataLoss: it has another length than `info` states, or is
  /// damaged. Cost: one read of the end of the file, and a stat of a file. Starts no threads.
  static Result<std::shared_ptr<const TableReader>> Open(std::shared_ptr<Storage> storage,
                                                         const TableInfo& info);

  const TableInfo& info() const { return info_; }
  /// Returns the value of `key`, which is empty for a tombstone; nothing if there is no record.
  /// kDataLoss: a block is damaged. kUnavailable, kNotFound: the storage cannot be read.
  Result<std::optional<std::vector<std::byte>>> Get(std::string_view key) const;
  /// Returns an iterator over the keys that are less than `end`, or, if it is empty, over all keys.
  /// With an end, no block is read only to find out what follows it.
  std::unique_ptr<TableIterator> NewIterator(TableAccess access, std::string_view end = {}) const;

  /// Reads all records, and counts them, tombstones included. Has the errors of Get.
  Result<uint64_t> CountRecords() const;
  /// Reads every byte and compares the digest of the file, the checksums of all blocks and the
  /// number of records with what was written. kDataLoss: they differ.
  Result<void> Verify() const;

 private:
  friend class TableIterator;
  using Block = std::shared_ptr<const TableBlock>;

  TableReader(TableFile file, const TableInfo& info) : info_(info), file_(std::move(file)) {}
  /// Returns a block from the cache, or reads it.
  Result<Block> ReadBlock(const BlockHandle& handle) const;

  static constexpr uint64_t kMaxKeptBytes = 32 << 10;  // longer blocks are not kept
  static constexpr size_t kMaxKeptBlocks = 32;

  const TableInfo info_;
  const TableFile file_;
  TableBlock top_;  // of the index
  mutable Mutex mutex_;
  mutable RecentlyUsed<uint64_t, Block, kMaxKeptBlocks> kept_ CAIRN_GUARDED_BY(mutex_);
};

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
  Result<void> Next() {
    if (order_.size() > 1) return NextOfSeveral();
    TableIterator& only = *sources_[order_.front()];
    Result<void> moved = only.Next();
    if (!only.Valid()) order_.clear();
    return moved;
  }

  /// Returns whether there is a record at this position.
  bool Valid() const { return !order_.empty(); }
  // Require Valid(). The results are valid until the next call of Seek or Next.
  std::string_view key() const { return sources_[order_.front()]->key(); }
  std::span<const std::byte> value() const { return sources_[order_.front()]->value(); }

 private:
  Result<void> NextOfSeveral();
  bool Precedes(size_t a, size_t b) const;
  void Insert(size_t source);
  Result<void> Advance(size_t position);

  std::vector<std::unique_ptr<TableIterator>> sources_;  // newest first
  std::vector<size_t> order_;  // sources that have records, by key, then newest first
};

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
