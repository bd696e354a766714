#pragma once
/// The ordered, atomic index of records: RocksDB behind a narrow door.
///
/// Nothing is kept in a write-ahead log. Writes go to memory and become durable together in Flush,
/// as table files plus one synced group of edits in RocksDB's manifest; a crash before that leaves
/// no trace of them. So there is no log whose damaged tail could drop a commit, and what the tail
/// of the manifest could drop is found by comparing with commits/ (docs/adr/0002).
///
/// Readers open the same files while the writer replaces them. Two rules make that safe: a reader
/// has every table file open before its open returns, and the writer removes a file only while it
/// holds an exclusive flock on CAIRN, which readers hold shared for the length of their open
/// (docs/adr/0003).

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"
#include "kv/key.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Env;
}  // namespace rocksdb

namespace cairn::kv::internal {

class IndexFileSystem;

/// Bytes aligned for FlatBuffers, reused from record to record.
class AlignedBytes {
 public:
  std::span<const std::byte> Assign(std::string_view bytes);

 private:
  std::vector<uint64_t> words_;
};

/// Records to be written together.
class IndexBatch {
 public:
  void Put(Column column, std::string_view key, std::span<const std::byte> value);
  void Delete(Column column, std::string_view key);
  /// Keys in [begin, end).
  void DeleteRange(Column column, std::string_view begin, std::string_view end);
  uint64_t size_bytes() const;
  void Clear();

 private:
  friend class Index;
  // One behind another in `bytes_`: this, the key, the value (the end of the range for
  // kDeleteRange). An allocation a record would cost as much as the record.
  struct Operation {
    enum class Kind : uint8_t { kPut, kDelete, kDeleteRange } kind;
    Column column;
    uint32_t key_bytes = 0;
    uint32_t value_bytes = 0;
  };
  void Add(Operation::Kind kind, Column column, std::string_view key, std::string_view value);

  std::string bytes_;
};

/// Threads: reads are safe from many threads; Write, Flush, Reopen and Close from one at a time.
class Index {
 public:
  /// `directory` is the store's. kNotFound: no index there and not `create`. kDataLoss: damaged.
  /// kUnavailable: a reader could not get between the writer's file removals before the deadline.
  static Result<std::shared_ptr<Index>> Open(const std::string& directory, bool writable,
                                             bool create, std::chrono::milliseconds deadline);
  ~Index();

  /// Keys beginning with `prefix`, in order, until `callback` returns false.
  Result<void> Scan(Column column, std::string_view prefix,
                    const std::function<Result<bool>(std::string_view, std::span<const std::byte>)>&
                        callback) const;
  /// All keys from `begin` on.
  Result<void> ScanFrom(
      Column column, std::string_view begin,
      const std::function<Result<bool>(std::string_view, std::span<const std::byte>)>& callback)
      const;
  Result<std::optional<std::vector<std::byte>>> Get(Column column, std::string_view key) const;

  /// Into memory only. Invisible to other processes and gone after a crash until Flush.
  Result<void> Write(const IndexBatch& batch);
  /// Makes all writes durable at once, or none. After an error the state is unknown: Reopen.
  Result<void> Flush();
  /// Drops what was not flushed and opens anew.
  Result<void> Reopen();
  /// Later calls fail with kFailedPrecondition.
  Result<void> Close();

  /// Reads every byte of every table file; calls `damage` for each that does not match its
  /// checksum.
  Result<void> VerifyTables(const std::function<void(Error)>& damage) const;

  /// Signature() from before a reader's open: while it stays the same, the view is up to date.
  const std::string& signature() const { return signature_; }
  /// Changes whenever a commit becomes visible to readers. Cost: two stats and a tiny read.
  static std::string Signature(const std::string& directory);

 private:
  Index(std::string directory, bool writable, std::chrono::milliseconds deadline);
  Result<void> OpenDatabase(bool create);
  Result<void> OpenOnce(bool create);
  Result<void> CheckOpen() const;
  void CloseDatabase();

  const std::string directory_;
  const bool writable_;
  const std::chrono::milliseconds deadline_;
  std::shared_ptr<IndexFileSystem> file_system_;  // outlives environment_ and db_
  std::unique_ptr<rocksdb::Env> environment_;
  std::string signature_;  // of what a reader opened

  mutable std::shared_mutex mutex_;  // shared by users of db_, exclusive to replace it
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> columns_;
};

}  // namespace cairn::kv::internal
