#include "kv/maintain/internal/target_segments.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_description.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/object_reader.h"

namespace cairn::kv::internal {
namespace {

/// An announcement that ends sooner is ignored. The clocks of two writers may differ by less.
constexpr std::chrono::hours kMinRemaining{1};

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
  if (known->second.newest_step) return FindInStep(*known->second.newest_step, source);
  return FindAnnounced(known->second, source);
}

Result<std::optional<TargetSegments::Found>> TargetSegments::FindInStep(
    uint64_t step, const SegmentInfo& source) const {
  CAIRN_TRY_ASSIGN(const StepEntryPtr entry, CurrentRoot(*target_)->steps.Find(step));
  if (entry == nullptr) return std::nullopt;
  CAIRN_TRY_ASSIGN(const TableStack stack, target_->tables->OpenStack(entry->tables));
  CAIRN_TRY_ASSIGN(const auto record,
                   stack.Get(TableKey(Column::kSegments, NumberKey(source.segment_id))));
  if (!record) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "a step has no record of a segment that it uses",
                      .file = target_->storage->address(),
                      .step = step});
  }
  CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(*record));
  if (HasSameContents(info, source)) return Found{.info = info};
  return Fail(
      Error{.code = ErrorCode::kConflict,
            .message = fmt::format("the target has another segment with the id of {}", source.name),
            .file = target_->storage->address(),
            .step = step});
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

}  // namespace cairn::kv::internal
