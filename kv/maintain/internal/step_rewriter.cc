// Each step is compared with the one before it, so that the new tables share records as the old
// ones did.

#include "kv/maintain/internal/step_rewriter.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/commit/internal/step_table_writer.h"
#include "kv/io/internal/free_space.h"
#include "kv/root/internal/kv_records.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {
namespace {

/// Returns the record with the locations after the move; nothing if they are the same.
Result<std::optional<std::vector<std::byte>>> MovedRecord(const LiveRanges& moves,
                                                          std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(record));
  std::optional<ChunkExtents> moved = moves.Moved(extents);
  if (!moved) return std::nullopt;
  CAIRN_TRY_ASSIGN(ChunkEntry entry, DecodeChunk(record));
  entry.extents = *std::move(moved);
  return EncodeChunk(entry);
}

/// The destructor removes the tables that no committed step has.
class StepRewriter {
 public:
  /// All arguments outlive it.
  StepRewriter(StoreState& state, const ChunkChanges& changes, std::span<const SegmentInfo> added)
      : state_(state), changes_(changes) {
    for (const SegmentInfo& info : added) added_[info.segment_id] = info;
  }

  ~StepRewriter() {
    if (state_.outcome_unknown) return;
    CleanUp([&] {
      std::set<ObjectId> used;
      if (is_committed_) {
        for (const auto& [step, rewritten] : rewritten_) {
          for (const TableInfo& table : rewritten.entry.tables) used.insert(table.id);
        }
      }
      for (const ObjectId& table : new_tables_) {
        if (used.contains(table)) continue;
        state_.tables->Forget(table);
        (void)state_.storage->Remove(ObjectName(ObjectKind::kTable, table));
      }
    });
  }
  StepRewriter(const StepRewriter&) = delete;
  StepRewriter& operator=(const StepRewriter&) = delete;

  /// Writes new tables for the affected steps of the newest root that were not rewritten yet.
  Result<void> Rewrite() {
    const auto root = CurrentRoot(state_);
    CAIRN_TRY_ASSIGN(const auto entries, root->steps.All());
    const StepEntry* before = nullptr;
    for (const StepEntryPtr& entry : entries) {
      const uint64_t step = entry->info.step;
      auto found = rewritten_.find(step);
      if (found == rewritten_.end() || found->second.old_entry != entry) {
        CAIRN_TRY_ASSIGN(const bool is_affected, changes_.may_affect(*entry));
        if (is_affected) CAIRN_TRY(RewriteStep(entry, before));
        found = rewritten_.find(step);
      }
      before = found != rewritten_.end() ? &found->second.entry : entry.get();
    }
    return {};
  }

  /// Rewrites the steps that have been committed since Rewrite, and commits all.
  Result<uint64_t> Commit() {
    const MutexLock write_lock(state_.write_mutex);
    CAIRN_TRY(CheckCanCommit(state_));
    CAIRN_TRY(WithSpace([this](uint64_t& seen) { return FreeSpaceForCommit(state_, seen); },
                        [this]() -> Result<void> {
                          CAIRN_TRY(ForgetStale());
                          return Rewrite();
                        }));
    std::vector<StepEntry> entries;
    for (const auto& [step, rewritten] : rewritten_) entries.push_back(rewritten.entry);
    if (entries.empty()) return 0;
    CAIRN_TRY_ASSIGN(const Unreachable unreachable, FindUnreachable(state_, {}, nullptr, entries));
    {
      const MutexLock lock(state_.mutex);
      state_.replaced_segments.insert(replaced_.begin(), replaced_.end());
    }
    CAIRN_TRY(CommitChange(state_, {}, unreachable, {.rewritten = entries}));
    is_committed_ = true;
    return entries.size();
  }

 private:
  struct Rewritten {
    StepEntryPtr old_entry;
    StepEntry entry;
  };

  Result<void> RewriteStep(const StepEntryPtr& old_entry, const StepEntry* base) {
    StepEntry entry{.info = old_entry->info};
    entry.info.rewritten =
        std::max(CurrentRoot(state_)->root.number, old_entry->info.rewritten) + 1;
    CAIRN_TRY_ASSIGN(const TableStack stack, state_.tables->OpenStack(old_entry->tables));
    CAIRN_TRY_ASSIGN(StepTableWriter table, StepTableWriter::Create(state_, base, entry.info));
    for (const auto& [id, info] : added_) {
      CAIRN_TRY(table.Add(
          {.key = TableKey(Column::kSegments, NumberKey(id)), .value = EncodeSegment(info)}));
    }
    const auto add = [&](const TableRecord& record) -> Result<void> {
      if (record.column() != Column::kChunks) return table.Add(record);
      CAIRN_TRY_ASSIGN(const auto changed, changes_.change(record.key.substr(1), record.value));
      return table.Add({.key = record.key, .value = changed ? *changed : record.value});
    };
    CAIRN_TRY(stack.ScanContents(
        [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
          CAIRN_TRY(add({.key = key, .value = record}));
          return true;
        }));
    CAIRN_TRY(
        stack.Scan(ColumnPrefix(Column::kSegments),
                   [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                     CAIRN_TRY(add({.key = key, .value = record}));
                     CAIRN_TRY_ASSIGN(SegmentInfo info, DecodeSegment(record));
                     if (changes_.replaces && changes_.replaces(info.segment_id))
                       replaced_[info.segment_id] = std::move(info);
                     return true;
                   }));
    CAIRN_TRY(table.Finish(entry));
    new_tables_.push_back(entry.tables.front().id);
    rewritten_[entry.info.step] = {.old_entry = old_entry, .entry = std::move(entry)};
    return {};
  }

  /// Forgets the steps that were deleted or replaced, and steps whose new tables share one with a
  /// step that was: it may have been removed.
  Result<void> ForgetStale() {
    const auto root = CurrentRoot(state_);
    CAIRN_TRY_ASSIGN(const auto entries, root->steps.All());
    std::set<StepEntryPtr> current(entries.begin(), entries.end());
    std::set<ObjectId> tables(new_tables_.begin(), new_tables_.end());
    for (const StepEntryPtr& entry : entries) {
      for (const TableInfo& table : entry->tables) tables.insert(table.id);
    }
    std::erase_if(rewritten_, [&](const auto& step) {
      const Rewritten& rewritten = step.second;
      return !current.contains(rewritten.old_entry) ||
             !std::ranges::all_of(rewritten.entry.tables, [&](const TableInfo& table) {
               return tables.contains(table.id);
             });
    });
    return {};
  }

  StoreState& state_;
  const ChunkChanges& changes_;
  std::map<uint64_t, SegmentInfo> added_;
  std::map<uint64_t, SegmentInfo> replaced_;
  std::map<uint64_t, Rewritten> rewritten_;  // by step
  std::vector<ObjectId> new_tables_;
  bool is_committed_ = false;
};

}  // namespace

Result<uint64_t> CommitChunkChanges(StoreState& state, const ChunkChanges& changes,
                                    std::span<const SegmentInfo> added) {
  StepRewriter rewriter(state, changes, added);
  const auto written = rewriter.Rewrite();
  // On a full disk, the commit continues with the tables that are missing.
  if (!written && written.error().code != ErrorCode::kResourceExhausted) {
    return std::unexpected(written.error());
  }
  return rewriter.Commit();
}

Result<uint64_t> CommitMoves(StoreState& state, const LiveRanges& moves, PayloadMover& mover) {
  CAIRN_TRY(mover.Seal());
  const ChunkChanges changes{
      .may_affect = [&](const StepEntry& entry) -> Result<bool> {
        CAIRN_TRY_ASSIGN(const auto usage, UsageOf(state, entry));
        return std::ranges::any_of(
            usage, [&](const SegmentUse& use) { return moves.Contains(use.segment.id); });
      },
      .change = [&](std::string_view, auto record) { return MovedRecord(moves, record); },
      .replaces = [&](uint64_t segment_id) { return moves.Contains(segment_id); }};
  auto committed = CommitChunkChanges(state, changes, mover.segments());
  if (committed || state.outcome_unknown) mover.Keep();
  return committed;
}

}  // namespace cairn::kv::internal
