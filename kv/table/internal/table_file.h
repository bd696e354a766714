#pragma once
/// The file of a table: its end, and reads of its blocks.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/recently_used.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/object_reader.h"
#include "kv/table/internal/table_block.h"

namespace cairn::kv::internal {

/// The description of a table in a root.
struct TableInfo {
  ObjectId id;
  uint64_t file_bytes = 0;
  uint64_t record_count = 0;  // including tombstones
  uint64_t digest = 0;        // XXH3-64 of the complete file
  friend bool operator==(const TableInfo&, const TableInfo&) = default;
};

/// Small reads of an object in a storage where each request takes long. Reads windows of 256 KiB
/// and keeps the last 16, so lookups of neighbouring keys make one request. When reads move
/// forward through the object, each request is twice as long as the one before it, up to 2 MiB.
/// Larger reads are not kept. Threads: many may call ReadAt at once.
class WindowReader {
 public:
  /// Windows end at `end_bytes` at the latest.
  explicit WindowReader(uint64_t end_bytes) : end_bytes_(end_bytes) {}

  /// Fills `target` with bytes of `object`, which is the same in all calls.
  Result<void> ReadAt(const ObjectReader& object, uint64_t offset_bytes,
                      std::span<std::byte> target);

  static constexpr uint64_t kWindowBytes = 256 << 10;

 private:
  /// Returns whether all bytes of `target` are in windows, and copies them.
  bool CopyFromWindows(uint64_t offset_bytes, std::span<std::byte> target);
  /// Returns how many windows to read from `first` on; at least `needed`.
  uint64_t PlanRead(uint64_t first, uint64_t needed);
  void Keep(uint64_t first, std::span<const std::byte> bytes);

  static constexpr uint64_t kMaxWindowsPerRead = 8;
  const uint64_t end_bytes_;
  Mutex mutex_;
  RecentlyUsed<uint64_t, std::vector<std::byte>, 16> windows_ CAIRN_GUARDED_BY(mutex_);  // by index
  uint64_t expected_ CAIRN_GUARDED_BY(mutex_) = 0;    // the window after the last read
  uint64_t read_count_ CAIRN_GUARDED_BY(mutex_) = 0;  // windows of the last read
};

/// A block, decompressed.
struct TableBlock {
  BlockMemory memory;
  std::span<const std::byte> contents;
};

/// Keeps the end of the file in memory: 64 KiB, or, in a storage without files, 1/64 of the table,
/// at least 512 KiB and at most 1 MiB. Opening a table reads it in one request, and a table that is
/// not larger is not read again. In a storage without files, also keeps what was read lately, at
/// most 4 MiB. Threads: many may call const members at once.
class TableFile {
 public:
  /// kNotFound: there is no such table. kDataLoss: it has another length, or the footer or the
  /// properties are damaged.
  static Result<TableFile> Open(std::shared_ptr<Storage> storage, const TableInfo& info);

  const std::string& name() const { return object_.name(); }
  /// For error messages.
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return object_.size_bytes(); }
  /// The block with the top of the index, as the footer states it.
  const BlockHandle& index() const { return index_; }
  /// Fills `target`. kDataLoss: the file ends before the range does.
  Result<void> ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const;
  /// Returns whether the block and its trailer end before the footer.
  bool Contains(const BlockHandle& handle) const;
  /// Reads and checks one block. kDataLoss: it is damaged.
  Result<void> ReadBlock(const BlockHandle& handle, TableBlock& block) const;
  /// Returns the error for a block that is damaged.
  Error DamagedBlock(const char* what, uint64_t offset_bytes) const;
  /// Reads the complete file again and compares its XXH3-64 with `digest`. kDataLoss: they differ.
  Result<void> VerifyDigest(uint64_t digest) const;

 private:
  explicit TableFile(ObjectReader object) : object_(std::move(object)), path_(object_.path()) {}
  Result<void> LoadTail(uint64_t tail_bytes);
  /// Sets index_. False: the footer, the metaindex or the properties are damaged.
  bool ReadFooter();

  ObjectReader object_;
  std::string path_;
  BlockHandle index_;
  uint64_t tail_offset_bytes_ = 0;
  std::unique_ptr<std::byte[]> tail_;
  std::unique_ptr<WindowReader> windows_;  // null: objects are files
};

}  // namespace cairn::kv::internal
