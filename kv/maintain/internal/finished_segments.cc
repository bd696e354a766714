#include "kv/maintain/internal/finished_segments.h"

#include <algorithm>

#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

void FinishedSegments::Add(const SegmentInfo& info) {
  const MutexLock lock(mutex_);
  segments_[info.segment_id] = {.info = info, .is_announced = false, .since = Clock::now()};
}

void FinishedSegments::AddAnnounced(const SegmentInfo& info, std::chrono::nanoseconds age) {
  const MutexLock lock(mutex_);
  segments_[info.segment_id] = {.info = info, .is_announced = true, .since = Clock::now() - age};
}

uint64_t FinishedSegments::announcement_count() const {
  const MutexLock lock(mutex_);
  return announcement_count_;
}

std::map<uint64_t, SegmentInfo> FinishedSegments::all() const {
  const MutexLock lock(mutex_);
  std::map<uint64_t, SegmentInfo> all;
  for (const auto& [id, finished] : segments_) all.emplace(id, finished.info);
  return all;
}

bool FinishedSegments::IsDue(Clock::time_point now) const {
  uint64_t bytes = 0;
  for (const auto& [id, finished] : segments_) {
    const Clock::duration age = now - finished.since;
    if (finished.is_announced) {
      if (age > kAnnouncedFor / 2) return true;
      continue;
    }
    bytes += finished.info.file_bytes;
    if (age >= limits_.interval || bytes >= limits_.bytes) return true;
  }
  return false;
}

Result<void> FinishedSegments::AnnounceIfDue() {
  const MutexLock lock(mutex_);
  return IsDue(Clock::now()) ? AnnounceLocked() : Result<void>();
}

Result<void> FinishedSegments::Announce() {
  const MutexLock lock(mutex_);
  const auto is_new = [](const auto& entry) { return !entry.second.is_announced; };
  return std::ranges::any_of(segments_, is_new) ? AnnounceLocked() : Result<void>();
}

Result<void> FinishedSegments::TakeEpoch() {
  const MutexLock lock(mutex_);
  return AnnounceLocked(/*takes_epoch=*/true);
}

Result<void> FinishedSegments::AnnounceLocked(bool takes_epoch) {
  LocalFiles* const files = target_.storage->local_files();
  // Before the first segment, a store has no folder for them.
  if (files != nullptr && !segments_.empty()) {
    CAIRN_TRY(files->SyncNames(ObjectFolder(ObjectKind::kSegment)));
  }
  std::vector<RemovedObject> objects;
  for (const auto& [id, finished] : segments_) {
    objects.push_back(
        {.name = SegmentObject(finished.info), .file_bytes = finished.info.file_bytes});
  }
  const MutexLock write_lock(target_.write_mutex);
  CAIRN_TRY(CommitAnnouncement(target_, objects, takes_epoch));
  ++announcement_count_;
  if (takes_epoch) {
    target_.copy_epoch = CurrentRoot(target_)->root.epoch;
    target_.copied_ids.clear();
  }
  for (auto& [id, finished] : segments_) {
    finished.is_announced = true;
    finished.since = Clock::now();
  }
  return {};
}

void FinishedSegments::Release(const std::vector<SegmentUse>& usage) {
  const MutexLock lock(mutex_);
  for (const SegmentUse& use : usage) segments_.erase(use.segment.id);
}

void FinishedSegments::RemoveUnannounced() {
  const MutexLock lock(mutex_);
  std::erase_if(segments_, [&](const auto& entry) {
    if (entry.second.is_announced) return false;
    // No root reaches it, and its name is not written again. The next open for writing removes what
    // cannot be removed now.
    if (!target_.outcome_unknown) (void)target_.storage->Remove(SegmentObject(entry.second.info));
    return true;
  });
}

}  // namespace cairn::kv::internal
