#pragma once
/// The ordered, atomic index of records: RocksDB behind a narrow interface.
///
/// There is no write-ahead log. Writes go to memory, and Flush makes all of them durable together,
/// as table files and one synced group of edits in RocksDB's manifest; a crash before that leaves
/// no trace of them. So there is no log whose damaged tail could lose a commit. What a damaged tail
/// of the manifest loses is found by a comparison with commits/ (docs/adr/0002).
///
/// Readers open the files while the writer replaces them. Two rules make that safe: a reader has
/// every table file open before its open returns; and the writer removes a file only while it holds
/// an exclusive flock on CAIRN, on which readers hold a shared flock while they open the index
/// (docs/adr/0003).

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"
#include "kv/key.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Env;
}  // namespace rocksdb

namespace cairn::kv::internal {

class IndexFileSystem;

/// A buffer that is aligned for FlatBuffers and reused for one record after another.
class AlignedBytes {
 public:
  /// Copies `bytes`. The result is valid until the next call.
  std::span<const std::byte> Assign(std::string_view bytes);

 private:
  std::vector<uint64_t> words_;
};

/// Changes of records that are written together.
class IndexBatch {
 public:
  void Put(Column column, std::string_view key, std::span<const std::byte> value);
  void Delete(Column column, std::string_view key);
  /// Deletes the keys in [begin, end).
  void DeleteRange(Column column, std::string_view begin, std::string_view end);
  uint64_t size_bytes() const;
  void Clear();

 private:
  friend class Index;
  // `bytes_` contains for each operation this header, the key, and the value (for kDeleteRange the
  // end of the range). An allocation for each record would cost as much as the record.
  struct Operation {
    enum class Kind : uint8_t { kPut, kDelete, kDeleteRange } kind;
    Column column;
    uint32_t key_bytes = 0;
    uint32_t value_bytes = 0;
  };
  void Add(Operation::Kind kind, Column column, std::string_view key, std::string_view value);

  std::string bytes_;
};

/// Every function returns kDataLoss if the index is damaged, kUnavailable or kResourceExhausted
/// after a failed file operation, and kFailedPrecondition after Close. Threads: const members are
/// safe; Write, Flush, Reopen and Close run on one thread at a time.
class Index {
 public:
  /// Opens the index of the store in `directory`; `create` creates it if it is absent. kDataLoss:
  /// it is damaged, or absent without `create`. kConflict: another writer has it. kUnavailable: a
  /// reader did not get the shared flock before the deadline.
  static Result<std::shared_ptr<Index>> Open(const std::string& directory, bool writable,
                                             bool create, std::chrono::milliseconds deadline);
  ~Index();

  /// Calls `callback` with the records whose keys begin with `prefix`, in order, until it returns
  /// false. Values are aligned to 8 bytes and valid only during the call.
  Result<void> Scan(Column column, std::string_view prefix,
                    const std::function<Result<bool>(std::string_view, std::span<const std::byte>)>&
                        callback) const;
  /// Does the same as Scan for all keys that are not less than `begin`.
  Result<void> ScanFrom(
      Column column, std::string_view begin,
      const std::function<Result<bool>(std::string_view, std::span<const std::byte>)>& callback)
      const;
  /// Returns nothing if there is no such record.
  Result<std::optional<std::vector<std::byte>>> Get(Column column, std::string_view key) const;

  /// Writes to memory only: until Flush, the changes are invisible to other processes, and a crash
  /// loses them.
  Result<void> Write(const IndexBatch& batch);
  /// Makes either all writes durable or none. After an error it is unknown which; call Reopen.
  Result<void> Flush();
  /// Drops what was not flushed and opens the index again.
  Result<void> Reopen();
  /// Closes the database. Has no effect if it is closed already.
  Result<void> Close();

  /// Reads every byte of every table file, and calls `damage` for each file that cannot be read or
  /// does not match its checksum.
  Result<void> VerifyTables(const std::function<void(Error)>& damage) const;

  /// Returns what Signature() returned before a reader opened the index. While Signature() still
  /// returns the same, the view is up to date.
  const std::string& signature() const { return signature_; }
  /// Returns a string that changes whenever a commit becomes visible to readers. Cost: two stats
  /// and a read of some bytes.
  static std::string Signature(const std::string& directory);

 private:
  Index(std::string directory, bool writable, std::chrono::milliseconds deadline);
  Result<void> OpenDatabase(bool create) CAIRN_REQUIRES(mutex_);
  Result<void> OpenOnce(bool create) CAIRN_REQUIRES(mutex_);
  Result<void> CheckOpen() const CAIRN_REQUIRES_SHARED(mutex_);
  void CloseDatabase() CAIRN_REQUIRES(mutex_);

  const std::string directory_;
  const bool writable_;
  const std::chrono::milliseconds deadline_;
  std::string signature_;  // of the files that a reader opened; not changed after Open

  // Users of db_ lock it shared; Reopen and Close, which replace db_, lock it exclusively.
  mutable SharedMutex mutex_;
  // Outlives environment_ and db_.
  std::shared_ptr<IndexFileSystem> file_system_ CAIRN_GUARDED_BY(mutex_);
  std::unique_ptr<rocksdb::Env> environment_ CAIRN_GUARDED_BY(mutex_);
  std::unique_ptr<rocksdb::DB> db_ CAIRN_GUARDED_BY(mutex_);
  std::vector<rocksdb::ColumnFamilyHandle*> columns_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
