#include "kv/maintain/internal/target_segments.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/object_reader.h"

namespace cairn::kv::internal {
namespace {

/// An announcement that ends sooner is ignored. The clocks of two writers may differ by less.
constexpr std::chrono::hours kMinRemaining{1};

}  // namespace

Error OtherSegment(const StoreState& target, const SegmentInfo& source) {
  return Error{
      .code = ErrorCode::kConflict,
      .message = fmt::format("the target has another segment with the id of {}", source.name),
      .file = target.storage->address()};
}

namespace {

bool HasSameContents(const SegmentInfo& a, const SegmentInfo& b) {
  return a.segment_id == b.segment_id && a.file_bytes == b.file_bytes &&
         a.footer_digest == b.footer_digest && a.page_digests_checksum == b.page_digests_checksum;
}

}  // namespace

Result<TargetSegments> TargetSegments::List(StoreState& target, uint64_t announcement_count) {
  TargetSegments segments(target);
  const auto root = CurrentRoot(target);
  segments.commit_count_ = root->root.number - announcement_count;
  const int64_t soon_ns = NowUnixNs() + std::chrono::nanoseconds(kMinRemaining).count();
  for (const RemovedObject& object : root->root.removed) {
    const auto parsed = ParseObjectName(object.name);
    if (!parsed || parsed->kind != ObjectKind::kSegment || object.since_unix_ns < soon_ns) continue;
    segments.known_[parsed->id.id] = {.id = parsed->id,
                                      .newest_step = std::nullopt,
                                      .announced_until_unix_ns = object.since_unix_ns};
  }
  CAIRN_TRY_ASSIGN(const auto entries, root->steps.All());
  for (const StepEntryPtr& entry : entries) {  // ascending
    CAIRN_TRY_ASSIGN(const auto usage, UsageOf(target, *entry));
    for (const SegmentUse& use : usage) {
      segments.known_[use.segment.id] = {.id = use.segment, .newest_step = entry->info.step};
    }
  }
  return segments;
}

bool TargetSegments::IsCurrent(uint64_t announcement_count) const {
  return CurrentRoot(*target_)->root.number == commit_count_ + announcement_count;
}

void TargetSegments::AddStep(uint64_t step, const std::vector<SegmentUse>& usage) {
  ++commit_count_;
  for (const SegmentUse& use : usage) {
    Known& known = known_[use.segment.id];
    known.id = use.segment;
    known.newest_step = std::max(known.newest_step.value_or(0), step);
  }
}

Result<std::optional<TargetSegments::Found>> TargetSegments::Find(const SegmentInfo& source) const {
  const auto known = known_.find(source.segment_id);
  if (known == known_.end()) return std::nullopt;
  if (known->second.id.id_tail != source.id_tail) return Fail(OtherSegment(*target_, source));
  if (known->second.newest_step) return FindInStep(*known->second.newest_step, source);
  return FindAnnounced(known->second, source);
}

Result<std::optional<TargetSegments::Found>> TargetSegments::FindInStep(
    uint64_t step, const SegmentInfo& source) const {
  CAIRN_TRY_ASSIGN(const StepEntryPtr entry, CurrentRoot(*target_)->steps.Find(step));
  if (entry == nullptr) return std::nullopt;
  CAIRN_TRY_ASSIGN(const TableStack stack, target_->tables->OpenStack(entry->tables));
  auto info = ReadSegmentRecord(stack, source.segment_id);
  if (!info) {
    return Fail(std::move(info).error().WithFile(target_->storage->address()).WithStep(step));
  }
  if (HasSameContents(*info, source)) return Found{.info = *std::move(info)};
  return Fail(OtherSegment(*target_, source).WithStep(step));
}

std::optional<TargetSegments::Found> TargetSegments::FindAnnounced(
    const Known& known, const SegmentInfo& source) const {
  SegmentInfo info = source;
  info.epoch = known.id.epoch;
  info.name = NewSegmentInfo(known.id).name;
  auto reader = ObjectReader::Open(target_->storage, SegmentObject(info));
  if (reader && ReadSegmentDescription(*reader, target_->uuid, info)) {
    const std::chrono::nanoseconds remaining(known.announced_until_unix_ns - NowUnixNs());
    return Found{.info = info, .announced_age = kAnnouncedFor - remaining};
  }
  return std::nullopt;  // it is copied again, under another name
}

std::optional<uint64_t> TargetSegments::FindBase(const std::vector<SegmentUse>& usage) const {
  std::map<uint64_t, uint64_t> bytes_of;  // by step
  for (const SegmentUse& use : usage) {
    const auto known = known_.find(use.segment.id);
    if (known == known_.end() || !known->second.newest_step) continue;
    bytes_of[*known->second.newest_step] += use.live_bytes;
  }
  std::optional<uint64_t> base;
  for (const auto& [step, bytes] : bytes_of) {
    if (!base || bytes >= bytes_of.at(*base)) base = step;
  }
  return base;
}

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
    if (age >= options_.keep_interval || bytes >= options_.keep_bytes) return true;
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
  // The first thread that fails knows why; the state only knows that no more can be committed.
  if (failure_) return Fail(*failure_);
  Result<void> announced = AnnounceAll(takes_epoch);
  if (!announced && target_.outcome_unknown) failure_ = announced.error();
  return announced;
}

Result<void> FinishedSegments::AnnounceAll(bool takes_epoch) {
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
  CAIRN_TRY(CommitChange(target_, {}, {}, {.announced = objects, .takes_epoch = takes_epoch}));
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
