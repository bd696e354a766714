// Files of objects, or copies of objects in memory.

#include "kv/internal/segment/segment_object.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kv/internal/io/fault_point.h"
#include "kv/internal/storage/name_check.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kCopyBytes = 1 << 20;

}  // namespace

Result<File> CreateSegmentFile(Storage& storage, const std::string& name, bool direct) {
  if (const int fault = FaultPoint("segment.create")) {
    return Fail(
        SystemError(fault, "cannot create the segment", ObjectPath(storage.address(), name)));
  }
  LocalFiles* const files = storage.local_files();
  if (files == nullptr) return File::CreateInMemory(ObjectPath(storage.address(), name));
  CAIRN_TRY(files->PrepareFile(name));
  return File::Create(files->PathOf(name), direct);
}

Result<void> PutSegmentFile(Storage& storage, const std::string& name, const File& file) {
  if (!file.is_in_memory()) return {};
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, file.SizeBytes());
  CAIRN_TRY_ASSIGN(const auto writer, storage.Create(name));
  std::vector<std::byte> buffer(std::min(size_bytes, kCopyBytes));
  for (uint64_t at = 0; at < size_bytes; at += buffer.size()) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), size_bytes - at));
    CAIRN_TRY(file.ReadAt(at, part));
    CAIRN_TRY(writer->Append(part));
  }
  CAIRN_TRY(writer->Finish());
  return CheckStored(storage, name, size_bytes);
}

Result<File> OpenSegmentFile(Storage& storage, const std::string& name, bool direct) {
  LocalFiles* const files = storage.local_files();
  if (files != nullptr) return File::OpenRead(files->PathOf(name), direct, "segment.open");
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, storage.Size(name));
  CAIRN_TRY_ASSIGN(File file, File::CreateInMemory(ObjectPath(storage.address(), name)));
  std::vector<std::byte> buffer(std::min(size_bytes, kCopyBytes));
  for (uint64_t at = 0; at < size_bytes; at += buffer.size()) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), size_bytes - at));
    CAIRN_TRY(storage.ReadRange(name, at, part));
    CAIRN_TRY(file.Append(part, "segment.copy"));
  }
  return file;
}

}  // namespace cairn::kv::internal
