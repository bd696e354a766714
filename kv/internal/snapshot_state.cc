// Opens steps and segments, and explains why an object is missing.

#include "kv/internal/snapshot_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/internal/records/kv_records.h"
#include "kv/internal/root/root_log.h"
#include "kv/internal/storage/object_names.h"
#include "kv/key.h"

namespace cairn::kv::internal {
namespace {

// Each keeps up to kMaxTables files open, beyond those that OpenTables keeps.
constexpr size_t kMaxOpenSteps = 8;
constexpr int kMaxRootsTried = 16;

}  // namespace

SnapshotState::SnapshotState(const StoreState& store, std::shared_ptr<const CommittedRoot> of_root)
    : storage(store.storage),
      options(store.options),
      uuid(store.uuid),
      root(std::move(of_root)),
      read_pool(store.read_pool),
      queues(store.queues),
      files(store.files),
      tables(store.tables) {}

Result<std::shared_ptr<const SnapshotState::OpenStep>> SnapshotState::Open(
    const StepInfo& step) const {
  {
    const MutexLock lock(mutex_);
    const auto found = open_.find(step.generation);
    if (found != open_.end()) return found->second;
  }
  CAIRN_TRY_ASSIGN(StepEntryPtr entry, root->steps.Find(step.step));
  if (entry == nullptr || entry->info.generation != step.generation) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "the snapshot does not contain this step",
                      .file = storage->address(),
                      .step = step.step});
  }
  auto stack = tables->OpenStack(entry->tables);
  if (!stack) {
    Error error = std::move(stack).error().WithStep(step.step);
    return Fail(error.code == ErrorCode::kNotFound ? Explain(std::move(error)) : std::move(error));
  }
  auto opened = std::make_shared<const OpenStep>(
      OpenStep{.entry = std::move(entry), .tables = *std::move(stack)});
  CAIRN_TRY(NoteSegments(*opened));
  const MutexLock lock(mutex_);
  if (open_.size() >= kMaxOpenSteps) open_.clear();
  return open_.emplace(step.generation, std::move(opened)).first->second;
}

Result<std::vector<SegmentUse>> SnapshotState::UsageOf(const OpenStep& step) const {
  return step.entry->usage_in_table ? ReadUsage(step.tables) : step.entry->usage;
}

Result<void> SnapshotState::NoteSegments(const OpenStep& step) const {
  CAIRN_TRY_ASSIGN(const std::vector<SegmentUse> usage, UsageOf(step));
  const MutexLock lock(mutex_);
  for (const SegmentUse& use : usage) segments_[use.segment.id] = use.segment;
  return {};
}

std::optional<ObjectId> SnapshotState::KnownSegment(uint64_t segment_id) const {
  const MutexLock lock(mutex_);
  const auto found = segments_.find(segment_id);
  if (found == segments_.end()) return std::nullopt;
  return found->second;
}

Result<ObjectId> SnapshotState::FindSegment(uint64_t segment_id) const {
  if (const auto known = KnownSegment(segment_id)) return *known;
  // Only a damaged chunk record, or a caller that has not opened its step, gets here.
  CAIRN_TRY_ASSIGN(const auto entries, root->steps.All());
  for (const StepEntryPtr& entry : entries) {
    CAIRN_TRY(Open(entry->info));
    if (const auto known = KnownSegment(segment_id)) return *known;
  }
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("no step uses a segment {:016x}", segment_id),
                    .file = storage->address()});
}

Result<bool> SnapshotState::IsUsedNow(const ParsedObjectName& object) const {
  CAIRN_TRY_ASSIGN(std::optional<Root> newest, FindNewest(*storage));
  for (int i = 0; newest && i < kMaxRootsTried; ++i) {
    Result<bool> is_used = IsUsedBy(*newest, object);
    if (is_used || is_used.error().code != ErrorCode::kNotFound) return is_used;
    // Either there is a newer root, and what this one names was removed, or it is damage.
    CAIRN_TRY_ASSIGN(newest, FindNewer(*storage, *newest));
  }
  if (!newest) return true;
  return Fail(ErrorCode::kUnavailable, "each root was replaced while it was read");
}

Result<bool> SnapshotState::IsUsedBy(const Root& root, const ParsedObjectName& object) const {
  if (object.kind == ObjectKind::kPage) {
    return std::ranges::find(root.pages, object.id, &PageRef::id) != root.pages.end();
  }
  CAIRN_TRY_ASSIGN(const auto entries, StepList(storage, root).All());
  for (const StepEntryPtr& entry : entries) {
    if (object.kind == ObjectKind::kTable) {
      bool is_used = false;
      for (const TableInfo& table : entry->tables) {
        table.ForEachId([&](const ObjectId& id) { is_used = is_used || id == object.id; });
      }
      if (is_used) return true;
      continue;
    }
    std::vector<SegmentUse> usage = entry->usage;
    if (entry->usage_in_table) {
      CAIRN_TRY_ASSIGN(TableStack stack, tables->OpenStack(entry->tables));
      CAIRN_TRY_ASSIGN(usage, UsageOf({.entry = entry, .tables = std::move(stack)}));
    }
    if (std::ranges::find(usage, object.id, &SegmentUse::segment) != usage.end()) return true;
  }
  return false;
}

Error SnapshotState::Explain(Error missing) const {
  const size_t prefix_bytes = storage->address().size() + 1;
  const auto object = missing.file.size() > prefix_bytes
                          ? ParseObjectName(std::string_view(missing.file).substr(prefix_bytes))
                          : std::nullopt;
  const Result<bool> is_used = object ? IsUsedNow(*object) : true;
  if (!is_used && is_used.error().code != ErrorCode::kDataLoss) {
    // Not damage: the step may have been deleted.
    missing.code = ErrorCode::kUnavailable;
    missing.message +=
        ", and it is unknown whether a step still uses it: " + is_used.error().message;
    return missing;
  }
  missing.code = is_used.value_or(true) ? ErrorCode::kDataLoss : ErrorCode::kNotFound;
  if (!is_used.value_or(true)) {
    missing.message =
        "the step was deleted while it was being read, and its grace period has passed";
  }
  return missing;
}

Result<std::shared_ptr<const SegmentFile>> SnapshotState::OpenSegment(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const ObjectId id, FindSegment(segment_id));
  const std::string name = ObjectName(ObjectKind::kSegment, id);
  auto file = files->Open(segment_id, *storage, name, options.io->direct);
  if (file || file.error().code != ErrorCode::kNotFound) return file;
  Error missing = std::move(file).error();
  missing.message = "a segment is missing: " + missing.message;
  return Fail(Explain(std::move(missing)));
}

}  // namespace cairn::kv::internal
