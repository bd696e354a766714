#include "kv/internal/segment/segment_files.h"

#include "kv/internal/segment/segment_object.h"

namespace cairn::kv::internal {

Result<std::shared_ptr<const SegmentFile>> SegmentFiles::Open(uint64_t segment_id, Storage& storage,
                                                              const std::string& name,
                                                              bool direct) {
  const MutexLock lock(mutex_);
  if (const auto found = by_id_.find(segment_id); found != by_id_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second);
    return found->second->second;
  }
  auto file = std::make_shared<SegmentFile>();
  CAIRN_TRY_ASSIGN(file->direct, OpenSegmentFile(storage, name, direct));
  CAIRN_TRY_ASSIGN(file->buffered, OpenSegmentFile(storage, name, /*direct=*/false));
  recent_.emplace_front(segment_id, file);
  by_id_[segment_id] = recent_.begin();
  if (recent_.size() > kMaxOpen) {
    by_id_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return file;
}

void SegmentFiles::Forget(uint64_t segment_id) {
  const MutexLock lock(mutex_);
  if (const auto found = by_id_.find(segment_id); found != by_id_.end()) {
    recent_.erase(found->second);
    by_id_.erase(found);
  }
}

}  // namespace cairn::kv::internal
