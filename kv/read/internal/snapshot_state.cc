// Opens steps and segments, and explains why an object is missing.

#include "kv/read/internal/snapshot_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/base/key.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/root_change.h"

namespace cairn::kv::internal {
namespace {

// Each keeps up to kMaxTables files open, beyond the files that OpenTables keeps.
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

template <typename Look>
auto SnapshotState::InNewestRoot(const Look& look) const -> decltype(look(Root())) {
  CAIRN_TRY_ASSIGN(std::optional<Root> newest, FindNewest(*storage));
  for (int i = 0; newest && i < kMaxRootsTried; ++i) {
    if (newest->store_uuid != uuid) {
      return Fail(Error{.code = ErrorCode::kNotFound,
                        .message = "another store has this address since the store was opened",
                        .file = storage->address()});
    }
    auto result = look(*newest);
    if (result || result.error().code != ErrorCode::kNotFound) return result;
    // Either there is a newer root, and what this one names was removed, or it is damage.
    CAIRN_TRY_ASSIGN(newest, FindNewer(*storage, *newest));
    if (newest) continue;
    Error missing = std::move(result).error();
    missing.code = ErrorCode::kDataLoss;
    missing.hint = Hint::kRebuildTables;
    missing.message = "an object that the newest root names is missing: " + missing.message;
    return Fail(std::move(missing));
  }
  if (newest) return Fail(ErrorCode::kUnavailable, "each root was replaced while it was read");
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = "the store has no roots any more",
                    .file = storage->address()});
}

namespace {

Error Deleted(const std::string& address, uint64_t step) {
  return {.code = ErrorCode::kNotFound,
          .hint = Hint::kListSteps,
          .message =
              "the step was overwritten or deleted while it was being read, and its grace period "
              "has passed",
          .file = address,
          .step = step};
}

/// Returns the error for an object that is missing, if the newest root cannot be read. That is not
/// damage: the step may have been deleted.
Error Unclear(Error missing, const Error& cause) {
  if (cause.code == ErrorCode::kDataLoss || cause.code == ErrorCode::kNotFound) return cause;
  missing.code = ErrorCode::kUnavailable;
  missing.message += ", and it is unknown whether a step still uses it: " + cause.message;
  return missing;
}

/// Returns the page, table or segment with this path; nothing if it is the path of something else.
std::optional<ParsedObjectName> ObjectAt(const Storage& storage, std::string_view path) {
  const std::string_view address = storage.address();
  if (!path.starts_with(address) || path.size() <= address.size()) return std::nullopt;
  return ParseObjectName(path.substr(address.size() + 1));
}

Error MissingTable(Error error) {
  error.code = ErrorCode::kDataLoss;
  error.hint = Hint::kRebuildTables;
  error.message = "a table is missing: " + error.message;
  return error;
}

}  // namespace

Result<StepEntryPtr> SnapshotState::FindEntry(uint64_t step) const {
  auto entry = root->steps.Find(step);
  if (entry || entry.error().code != ErrorCode::kNotFound) return entry;
  CAIRN_TRY_ASSIGN(entry, InNewestRoot([&](const Root& newest) {
                     return StepList(storage, newest).Find(step);
                   }));
  // The entry of a step that exists has a later generation if it was overwritten.
  if (*entry != nullptr && (*entry)->info.generation <= root->root.number) return entry;
  return Fail(Deleted(storage->address(), step));
}

Result<std::vector<StepEntryPtr>> SnapshotState::AllEntries() const {
  auto entries = root->steps.All();
  if (entries || entries.error().code != ErrorCode::kNotFound) return entries;
  CAIRN_TRY_ASSIGN(
      entries, InNewestRoot([&](const Root& newest) { return StepList(storage, newest).All(); }));
  std::erase_if(*entries, [&](const StepEntryPtr& entry) {
    return entry->info.generation > root->root.number;
  });
  return entries;
}

Result<StepEntryPtr> SnapshotState::NewestEntry(const StepInfo& step) const {
  return InNewestRoot([&](const Root& newest) -> Result<StepEntryPtr> {
    CAIRN_TRY_ASSIGN(StepEntryPtr entry, StepList(storage, newest).Find(step.step));
    const bool is_same = entry != nullptr && entry->info.generation == step.generation;
    return is_same ? std::move(entry) : nullptr;
  });
}

Result<StepEntryPtr> SnapshotState::FindReplacement(const StepInfo& step, const StepEntry& stale,
                                                    Error missing) const {
  missing = std::move(missing).WithStep(step.step);
  auto newer = NewestEntry(step);
  if (!newer) return Fail(Unclear(std::move(missing), newer.error()));
  if (*newer == nullptr) return Fail(Deleted(storage->address(), step.step));
  if ((*newer)->tables == stale.tables) return Fail(MissingTable(std::move(missing)));
  return newer;
}

Result<SnapshotState::OpenStepPtr> SnapshotState::OpenEntry(const StepInfo& step,
                                                            StepEntryPtr entry) const {
  for (int i = 0; i < kMaxRootsTried; ++i) {
    auto stack = tables->OpenStack(entry->tables);
    if (stack) {
      auto opened =
          std::make_shared<const OpenStep>(OpenStep{.entry = entry, .tables = *std::move(stack)});
      CAIRN_TRY(NoteSegments(*opened));
      const MutexLock lock(mutex_);
      if (open_.size() >= kMaxOpenSteps) open_.clear();
      return open_[step.generation] = std::move(opened);
    }
    Error error = std::move(stack).error().WithStep(step.step);
    if (error.code != ErrorCode::kNotFound) return Fail(std::move(error));
    CAIRN_TRY_ASSIGN(entry, FindReplacement(step, *entry, std::move(error)));
  }
  return Fail(Error{.code = ErrorCode::kUnavailable,
                    .message = "the step was compacted each time that it was read",
                    .file = storage->address(),
                    .step = step.step});
}

Result<std::shared_ptr<const SnapshotState::OpenStep>> SnapshotState::Open(
    const StepInfo& step) const {
  {
    const MutexLock lock(mutex_);
    const auto found = open_.find(step.generation);
    if (found != open_.end()) return found->second;
  }
  CAIRN_TRY_ASSIGN(StepEntryPtr entry, FindEntry(step.step));
  if (entry == nullptr || entry->info.generation != step.generation) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .hint = Hint::kListSteps,
                      .message = "the snapshot does not contain this step",
                      .file = storage->address(),
                      .step = step.step});
  }
  return OpenEntry(step, std::move(entry));
}

Result<void> SnapshotState::Scan(const StepInfo& step, std::string_view first_key,
                                 std::string_view prefix, const TableStack::Visit& visit) const {
  CAIRN_TRY_ASSIGN(OpenStepPtr open, Open(step));
  std::string begin(first_key);
  std::string last;  // key of the last record, after which a scan of newer tables continues
  while (true) {
    bool is_refused = false;
    const auto scanned = open->tables.ScanFrom(
        begin, prefix,
        [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
          last = key;
          auto more = visit(key, record);
          is_refused = !more;
          return more;
        });
    if (scanned || is_refused || scanned.error().code != ErrorCode::kNotFound) return scanned;
    CAIRN_TRY_ASSIGN(StepEntryPtr newer, FindReplacement(step, *open->entry, scanned.error()));
    CAIRN_TRY_ASSIGN(open, OpenEntry(step, std::move(newer)));
    if (!last.empty()) begin = last + '\0';
  }
}

Result<std::optional<std::vector<std::byte>>> SnapshotState::Get(const StepInfo& step,
                                                                 std::string_view key) const {
  CAIRN_TRY_ASSIGN(OpenStepPtr open, Open(step));
  while (true) {
    auto record = open->tables.Get(key);
    if (record || record.error().code != ErrorCode::kNotFound) return record;
    CAIRN_TRY_ASSIGN(StepEntryPtr newer,
                     FindReplacement(step, *open->entry, std::move(record).error()));
    CAIRN_TRY_ASSIGN(open, OpenEntry(step, std::move(newer)));
  }
}

Result<std::vector<SegmentUse>> SnapshotState::UsageOf(const OpenStep& step) const {
  return step.entry->usage_in_tables ? ReadUsage(step.tables) : step.entry->usage;
}

Result<std::vector<SegmentInfo>> SnapshotState::SegmentsOf(const StepInfo& step) const {
  std::vector<SegmentInfo> segments;
  const std::string prefix = ColumnPrefix(Column::kSegments);
  CAIRN_TRY(Scan(step, prefix, prefix,
                 [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                   CAIRN_TRY_ASSIGN(SegmentInfo info, DecodeSegment(record));
                   if (key != TableKey(Column::kSegments, NumberKey(info.segment_id))) {
                     return Fail(ErrorCode::kDataLoss,
                                 "a segment record is under the key of another segment");
                   }
                   segments.push_back(std::move(info));
                   return true;
                 }));
  return segments;
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
  CAIRN_TRY_ASSIGN(const auto entries, AllEntries());
  for (const StepEntryPtr& entry : entries) {
    CAIRN_TRY(Open(entry->info));
    if (const auto known = KnownSegment(segment_id)) return *known;
  }
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("no step uses a segment {:016x}", segment_id),
                    .file = storage->address()});
}

Result<bool> SnapshotState::IsUsedBy(const Root& root, const ParsedObjectName& object) const {
  if (object.kind == ObjectKind::kPage) {
    return std::ranges::find(root.pages, object.id, &PageRef::id) != root.pages.end();
  }
  CAIRN_TRY_ASSIGN(const auto entries, StepList(storage, root).All());
  for (const StepEntryPtr& entry : entries) {
    if (object.kind == ObjectKind::kTable) {
      if (std::ranges::find(entry->tables, object.id, &TableInfo::id) != entry->tables.end()) {
        return true;
      }
      continue;
    }
    std::vector<SegmentUse> usage = entry->usage;
    if (entry->usage_in_tables) {
      CAIRN_TRY_ASSIGN(TableStack stack, tables->OpenStack(entry->tables));
      CAIRN_TRY_ASSIGN(usage, UsageOf({.entry = entry, .tables = std::move(stack)}));
    }
    if (std::ranges::find(usage, object.id, &SegmentUse::segment) != usage.end()) return true;
  }
  return false;
}

Error SnapshotState::Explain(Error missing) const {
  if (missing.file == storage->address()) return missing;  // whoever created it has looked there
  const auto object = ObjectAt(*storage, missing.file);
  const Result<bool> is_used =
      object ? InNewestRoot([&](const Root& newest) { return IsUsedBy(newest, *object); })
             : Result<bool>(true);
  if (is_used && !*is_used) {
    missing.code = ErrorCode::kNotFound;
    missing.message =
        "the step was compacted, overwritten or deleted while it was being read, and its grace "
        "period has passed; read it again";
  } else if (is_used || is_used.error().code == ErrorCode::kDataLoss) {
    missing.code = ErrorCode::kDataLoss;
    if (object && object->kind != ObjectKind::kSegment) missing.hint = Hint::kRebuildTables;
  } else {
    missing = Unclear(std::move(missing), is_used.error());
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

Error ExplainAbsence(const StoreState& store, Error error) {
  if (error.code != ErrorCode::kNotFound || !ObjectAt(*store.storage, error.file)) return error;
  return SnapshotState(store, CurrentRoot(store)).Explain(std::move(error));
}

Error ExplainFailure(StoreState& store, Error error) {
  if (store.outcome_unknown) return error;
  const Result<void> is_writer = CheckStillWriter(store);
  if (!is_writer && is_writer.error().code == ErrorCode::kConflict) return is_writer.error();
  return ExplainAbsence(store, std::move(error));
}

}  // namespace cairn::kv::internal
