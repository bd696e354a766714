#include "kv/segment/internal/segment_files.h"

#include <sys/stat.h>

#include "kv/io/internal/fault_point.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

Result<std::unique_ptr<IoQueue>> TakeSegmentQueue(Storage& storage, FileQueues& queues,
                                                  uint32_t depth) {
  if (storage.local_files() == nullptr) return storage.MakeQueue(depth);
  return queues.Take(depth);
}

Result<void> CheckRead(const IoCompletion& completion, const std::string& path) {
  int error_number = completion.error_number;
  if (const int fault = FaultPoint("segment.read")) error_number = fault;
  if (completion.error) return Fail(*completion.error);
  if (error_number == 0) return {};
  Error error = SystemError(error_number, "cannot read the segment", path);
  // EIO from a disk is a damaged medium; other errors may be temporary.
  if (error_number == EIO) error.code = ErrorCode::kDataLoss;
  return Fail(std::move(error).WithOffset(completion.request.offset_bytes));
}

Result<std::shared_ptr<const SegmentFile>> SegmentFiles::Open(uint64_t segment_id, Storage& storage,
                                                              const std::string& name,
                                                              bool direct) {
  const MutexLock lock(mutex_);
  const OpenFile* const found = open_.Find(segment_id);
  // Another name: the segment was deleted and copied back since, and has another epoch.
  if (found != nullptr && (*found)->name == name) return *found;
  auto file = std::make_shared<SegmentFile>();
  file->name = name;
  file->path = ObjectPath(storage.address(), name);
  if (LocalFiles* const files = storage.local_files()) {
    CAIRN_TRY_ASSIGN(const FilePlace place, files->PlaceOf(name));
    CAIRN_TRY_ASSIGN(file->direct, File::OpenRead(place, direct, "segment.open"));
    CAIRN_TRY_ASSIGN(file->buffered, File::OpenRead(place, /*direct=*/false, "segment.open"));
  } else {
    file->is_object = true;
  }
  open_.Put(segment_id, file);
  return file;
}

void SegmentFiles::DropRemoved() {
  const MutexLock lock(mutex_);
  open_.RemoveIf([](uint64_t, const OpenFile& file) {
    struct stat status{};
    return !file->is_object && ::fstat(file->direct.fd(), &status) == 0 && status.st_nlink == 0;
  });
}

void SegmentFiles::Forget(uint64_t segment_id) {
  const MutexLock lock(mutex_);
  open_.RemoveIf([&](uint64_t id, const OpenFile&) { return id == segment_id; });
}

}  // namespace cairn::kv::internal
