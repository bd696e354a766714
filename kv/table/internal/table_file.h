#pragma once
/// The file of a table, checked so far that RocksDB can parse it.

#include <memory>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/internal/object_reader.h"
#include "kv/table/internal/table_info.h"
#include "kv/table/internal/window_reader.h"

namespace cairn::kv::internal {

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
  /// Fills `target`. kDataLoss: the file ends before the range does.
  Result<void> ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const;
  /// Reads the complete file again and compares its XXH3-64 with `digest`. kDataLoss: they differ.
  Result<void> VerifyDigest(uint64_t digest) const;

 private:
  explicit TableFile(ObjectReader object) : object_(std::move(object)), path_(object_.path()) {}
  Result<void> LoadTail(uint64_t tail_bytes);

  ObjectReader object_;
  std::string path_;
  uint64_t tail_offset_bytes_ = 0;
  std::vector<std::byte> tail_;
  std::unique_ptr<WindowReader> windows_;  // null: objects are files
};

}  // namespace cairn::kv::internal
