#pragma once
/// Reads one object many times.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kv/base/error.h"
#include "kv/io/internal/file.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// An object that is open for reading. In a storage with LocalFiles it is a file descriptor, so a
/// read is one pread, and an object that was removed since remains readable. Ownership: move-only;
/// shares the storage with the store and other readers. Threads: many may call ReadAt at once.
class ObjectReader {
 public:
  /// kNotFound: there is no such object. Cost: an open and a stat; in a storage without files, one
  /// request for the length, or none if it is known: then the first ReadAt finds out whether there
  /// is such an object.
  static Result<ObjectReader> Open(std::shared_ptr<Storage> storage, std::string name,
                                   std::optional<uint64_t> size_bytes = {}) {
    ObjectReader reader(std::move(storage), std::move(name));
    if (LocalFiles* const files = reader.storage_->local_files()) {
      CAIRN_TRY_ASSIGN(const FilePlace place, files->PlaceOf(reader.name_));
      CAIRN_TRY_ASSIGN(reader.file_, File::OpenRead(place, /*direct=*/false, "object.open"));
      CAIRN_TRY_ASSIGN(reader.size_bytes_, reader.file_->SizeBytes());
    } else if (size_bytes) {
      reader.size_bytes_ = *size_bytes;
    } else {
      CAIRN_TRY_ASSIGN(reader.size_bytes_, reader.storage_->Size(reader.name_));
    }
    return reader;
  }

  const std::string& name() const { return name_; }
  /// For error messages: the address of the storage and the name.
  std::string path() const { return ObjectPath(storage_->address(), name_); }
  uint64_t size_bytes() const { return size_bytes_; }
  /// Fills `target`. kDataLoss: the object ends before the range does. kNotFound: it was removed.
  Result<void> ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const {
    return file_ ? file_->ReadAt(offset_bytes, target)
                 : storage_->ReadRange(name_, offset_bytes, target);
  }

 private:
  ObjectReader(std::shared_ptr<Storage> storage, std::string name)
      : storage_(std::move(storage)), name_(std::move(name)) {}

  std::shared_ptr<Storage> storage_;
  std::string name_;
  uint64_t size_bytes_ = 0;
  std::optional<File> file_;  // if objects are files
};

}  // namespace cairn::kv::internal
