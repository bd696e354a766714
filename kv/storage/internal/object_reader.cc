#include "kv/storage/internal/object_reader.h"

namespace cairn::kv::internal {

Result<ObjectReader> ObjectReader::Open(std::shared_ptr<Storage> storage, std::string name) {
  ObjectReader reader(std::move(storage), std::move(name));
  if (LocalFiles* const files = reader.storage_->local_files()) {
    CAIRN_TRY_ASSIGN(const FilePlace place, files->PlaceOf(reader.name_));
    CAIRN_TRY_ASSIGN(reader.file_, File::OpenRead(place, /*direct=*/false, "object.open"));
    CAIRN_TRY_ASSIGN(reader.size_bytes_, reader.file_->SizeBytes());
  } else {
    CAIRN_TRY_ASSIGN(reader.size_bytes_, reader.storage_->Size(reader.name_));
  }
  return reader;
}

Result<ObjectReader> ObjectReader::Open(std::shared_ptr<Storage> storage, std::string name,
                                        uint64_t size_bytes) {
  if (storage->local_files() != nullptr) return Open(std::move(storage), std::move(name));
  ObjectReader reader(std::move(storage), std::move(name));
  reader.size_bytes_ = size_bytes;
  return reader;
}

Result<void> ObjectReader::ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const {
  if (file_) return file_->ReadAt(offset_bytes, target);
  return storage_->ReadRange(name_, offset_bytes, target);
}

}  // namespace cairn::kv::internal
