// Commits and deletes in the index: one atomic write, and the removal of what it replaces.

#include "kv/internal/commit/commit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "kv/internal/commit/collected_records.h"
#include "kv/internal/commit/manifest.h"
#include "kv/internal/io/fault_point.h"
#include "kv/step_info.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kBatchBytes = 4 << 20;
constexpr Column kGenerationColumns[] = {Column::kTensors, Column::kChunks, Column::kValues};

std::string StructureKey(const Digest& digest) {
  return NumberKey(digest.hi) + NumberKey(digest.lo);
}

/// Writes the records of one step to the index, and collects what becomes visible with it.
class StepIndexer {
 public:
  StepIndexer(StoreState& state, uint64_t generation)
      : state_(state), generation_(generation), prefix_(NumberKey(generation)), key_(prefix_) {}

  Result<void> Add(const ManifestFile& manifest) {
    CAIRN_TRY_ASSIGN(ManifestRef ref,
                     ReadManifest(manifest.path, [this](Column column, std::string_view key,
                                                        std::span<const std::byte> value) {
                       return AddEntry(column, key, value);
                     }));
    if (ref.rank != manifest.rank) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "the manifest belongs to another rank",
                        .file = manifest.path});
    }
    manifests_.push_back(ref);
    return {};
  }

  Result<void> Add(CollectedRecords& records, const ManifestRef& ref) {
    manifests_.push_back(ref);
    return records.ForEachInOrder(
        [this](Column column, std::string_view key, std::span<const std::byte> value) {
          return AddEntry(column, key, value);
        });
  }

  Result<StepEntry> Finish(IndexBatch& batch) {
    if (!step_)
      return Fail(ErrorCode::kDataLoss, "no manifest of the step contains its step record");
    batch = std::move(last_);
    for (const auto& [segment_id, live_bytes] : usage_) {
      batch.Put(Column::kUsage, UsageKey(segment_id, generation_), EncodeUsage(live_bytes));
    }
    step_->info.generation = generation_;
    step_->manifests = manifests_;
    batch.Put(Column::kSteps, NumberKey(step_->info.step), EncodeStep(*step_));
    if (invisible_.size_bytes() > 0) CAIRN_TRY(state_.index->Write(invisible_));
    return *step_;
  }

  std::set<uint64_t> used_segments() const {
    std::set<uint64_t> ids;
    for (const auto& [segment_id, live_bytes] : usage_) ids.insert(segment_id);
    return ids;
  }

 private:
  Result<void> AddEntry(Column column, std::string_view key, std::span<const std::byte> value) {
    switch (column) {
      case Column::kChunks: {
        CAIRN_TRY_ASSIGN(const Extents extents, DecodeChunkExtents(value));
        for (const Extent& extent : extents) AddUse(extent);
        break;
      }
      case Column::kSteps: {
        // The record of rank 0, which has the totals of all ranks, is the last one.
        CAIRN_TRY_ASSIGN(step_, DecodeStep(value));
        return {};
      }
      case Column::kStructures:
        if (!key.empty()) return {};  // refers to shared records, which rank 0 has copied
        return AddStructure(value);
      case Column::kSegments:
        last_.Put(column, key, value);
        return {};
      case Column::kTensors:
      case Column::kValues:
        break;
      case Column::kUsage:
        return Fail(ErrorCode::kDataLoss, "a manifest contains a usage record");
    }
    key_.replace(prefix_.size(), std::string::npos, key);
    invisible_.Put(column, key_, value);
    if (invisible_.size_bytes() >= kBatchBytes) {
      CAIRN_TRY(state_.index->Write(invisible_));
      invisible_.Clear();
    }
    return {};
  }

  void AddUse(const Extent& extent) {
    if (last_segment_ == nullptr || last_segment_->first != extent.segment_id) {
      last_segment_ = &*usage_.try_emplace(extent.segment_id, 0).first;
    }
    last_segment_->second += extent.length_bytes;
  }

  // Most steps have the same structure as the step before them, so it is written only if it is new.
  Result<void> AddStructure(std::span<const std::byte> record) {
    const std::string key = StructureKey(PayloadDigest(record));
    CAIRN_TRY_ASSIGN(const auto known, state_.index->Get(Column::kStructures, key));
    if (!known || !std::ranges::equal(*known, record)) last_.Put(Column::kStructures, key, record);
    return {};
  }

  StoreState& state_;
  const uint64_t generation_;
  const std::string prefix_;
  std::string key_;       // prefix_ and the key of the current record
  IndexBatch invisible_;  // records under the generation: invisible until the step record exists
  IndexBatch last_;       // what must become visible together with the step record
  std::unordered_map<uint64_t, uint64_t> usage_;  // live bytes by segment
  std::pair<const uint64_t, uint64_t>* last_segment_ =
      nullptr;  // in usage_, whose nodes do not move
  std::vector<ManifestRef> manifests_;
  std::optional<StepEntry> step_;
};

}  // namespace

Result<std::vector<StepEntry>> LoadSteps(const Index& index) {
  std::vector<StepEntry> steps;
  CAIRN_TRY(
      index.Scan(Column::kSteps, "",
                 [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                   CAIRN_TRY_ASSIGN(StepEntry entry, DecodeStep(record));
                   if (key != NumberKey(entry.info.step)) {
                     return Fail(Error{.code = ErrorCode::kDataLoss,
                                       .message = "a step record is under the key of another step",
                                       .step = entry.info.step});
                   }
                   steps.push_back(std::move(entry));
                   return true;
                 }));
  return steps;
}

bool HasGeneration(const StoreState& state, uint64_t generation) {
  const MutexLock lock(state.mutex);
  return std::ranges::any_of(state.steps, [generation](const StepEntry& entry) {
    return entry.info.generation == generation;
  });
}

std::vector<StepEntry> FindEntries(const StoreState& state, uint64_t step) {
  std::vector<StepEntry> found;
  for (const StepEntry& entry : state.steps) {
    if (entry.info.step == step) found.push_back(entry);
  }
  return found;
}

Result<Removal> PlanRemoval(const StoreState& state, std::vector<StepEntry> steps,
                            const std::set<uint64_t>& kept_segments) {
  Removal removal{.steps = std::move(steps), .usage = {}, .dead_segments = {}};
  std::set<uint64_t> removed;
  for (const StepEntry& entry : removal.steps) removed.insert(entry.info.generation);
  std::map<uint64_t, bool> used_elsewhere;  // of segments that the removed steps use
  std::set<uint64_t> used_by_others;
  CAIRN_TRY(state.index->Scan(
      Column::kUsage, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        CAIRN_TRY_ASSIGN(const Usage usage, DecodeUsage(key, record));
        if (removed.contains(usage.generation)) {
          used_elsewhere.try_emplace(usage.segment_id, false);
          removal.usage.push_back(usage);
        } else {
          used_by_others.insert(usage.segment_id);
        }
        return true;
      }));
  for (const auto& [segment_id, unused] : used_elsewhere) {
    if (used_by_others.contains(segment_id) || kept_segments.contains(segment_id)) continue;
    CAIRN_TRY_ASSIGN(const auto record, state.index->Get(Column::kSegments, NumberKey(segment_id)));
    if (!record) continue;
    CAIRN_TRY_ASSIGN(SegmentInfo info, DecodeSegment(*record));
    removal.dead_segments.push_back(std::move(info));
  }
  return removal;
}

void AddToBatch(const StoreState& state, const Removal& removal, const StepEntry* replacement,
                IndexBatch& batch) {
  std::set<uint64_t> removed;
  for (const StepEntry& entry : removal.steps) removed.insert(entry.info.generation);
  std::set<std::string> structures_in_use;
  {
    const MutexLock lock(state.mutex);
    for (const StepEntry& entry : state.steps) {
      if (!removed.contains(entry.info.generation)) {
        structures_in_use.insert(StructureKey(entry.info.structure));
      }
    }
  }
  if (replacement != nullptr) structures_in_use.insert(StructureKey(replacement->info.structure));

  for (const StepEntry& entry : removal.steps) {
    const bool replaced = replacement != nullptr && replacement->info.step == entry.info.step;
    if (!replaced) batch.Delete(Column::kSteps, NumberKey(entry.info.step));
    for (const Column column : kGenerationColumns) {
      batch.DeleteRange(column, NumberKey(entry.info.generation),
                        NumberKey(entry.info.generation + 1));
    }
    const std::string structure = StructureKey(entry.info.structure);
    if (!structures_in_use.contains(structure)) batch.Delete(Column::kStructures, structure);
  }
  for (const Usage& usage : removal.usage) {
    batch.Delete(Column::kUsage, UsageKey(usage.segment_id, usage.generation));
  }
  for (const SegmentInfo& segment : removal.dead_segments) {
    batch.Delete(Column::kSegments, NumberKey(segment.segment_id));
  }
}

Result<void> MarkRemoval(const StoreState& state, const Removal& removal) {
  if (removal.steps.empty()) return {};
  Result<void> marked = {};
  for (const StepEntry& entry : removal.steps) {
    for (const ManifestRef& manifest : entry.manifests) {
      if (marked) marked = MarkDeleting(state.paths, entry.info.generation, manifest.rank);
    }
  }
  if (marked) marked = SyncDirectory(state.paths.commits(), "delete.directory_sync");
  if (!marked) UndoRemoval(state, removal);
  return marked;
}

void UndoRemoval(const StoreState& state, const Removal& removal) {
  for (const StepEntry& entry : removal.steps) {
    for (const ManifestRef& manifest : entry.manifests) {
      // The next open for writing repeats what fails here, because the index still has the step.
      (void)UnmarkDeleting(state.paths, entry.info.generation, manifest.rank);
    }
  }
}

uint64_t FinishRemoval(const StoreState& state, const Removal& removal) {
  uint64_t freed_bytes = 0;
  for (const SegmentInfo& segment : removal.dead_segments) {
    state.files->Forget(segment.segment_id);
    if (FaultPoint("delete.unlink") != 0) continue;
    if (RemoveFile(state.paths.segments() + "/" + segment.name)) freed_bytes += segment.file_bytes;
  }
  for (const StepEntry& entry : removal.steps) {
    for (const ManifestRef& manifest : entry.manifests) {
      (void)RemoveFile(DeletingPath(state.paths, entry.info.generation, manifest.rank));
    }
  }
  return freed_bytes;
}

Result<void> CommitBatch(StoreState& state, const IndexBatch& batch,
                         const std::function<bool()>& is_committed) {
  Result<void> committed = state.index->Write(batch);
  if (committed) committed = state.index->Flush();
  if (committed) return {};
  // RocksDB may keep the write in memory and flush it later, but a step must not appear after it
  // was reported as failed. Reopening drops the write, or shows that it is durable.
  Result<void> reopened = state.index->Reopen();
  if (reopened) reopened = RefreshSteps(state);
  if (!reopened) {
    state.outcome_unknown = true;
    Error error = std::move(committed).error();
    error.message +=
        "; the index could not be reopened either (" + reopened.error().message +
        "): close the store and open it again to find out whether the change is durable";
    return Fail(std::move(error));
  }
  if (is_committed()) return {};
  (void)DropOrphanRecords(state);  // if this fails, the next open for writing repeats it
  return committed;
}

Result<void> CheckOutcomeKnown(const StoreState& state) {
  if (!state.outcome_unknown) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message =
                        "an earlier change of the index failed and may or may not be durable; "
                        "close the store and open it again",
                    .file = state.paths.root});
}

Result<void> RefreshSteps(StoreState& state) {
  CAIRN_TRY_ASSIGN(std::vector<StepEntry> steps, LoadSteps(*state.index));
  const MutexLock lock(state.mutex);
  for (const StepEntry& entry : steps) {
    state.next_generation = std::max(state.next_generation, entry.info.generation + 1);
  }
  state.live->Set(steps);
  state.steps = std::move(steps);
  state.latest = nullptr;
  return {};
}

Result<void> DropOrphanRecords(StoreState& state) {
  std::set<uint64_t> live;
  {
    const MutexLock lock(state.mutex);
    for (const StepEntry& entry : state.steps) live.insert(entry.info.generation);
  }
  IndexBatch batch;
  for (const Column column : kGenerationColumns) {
    // Skip from each generation to the next one in the column, without reading their records.
    std::optional<uint64_t> next = 0;
    while (next) {
      const uint64_t begin = *next;
      next.reset();
      CAIRN_TRY(state.index->ScanFrom(
          column, NumberKey(begin),
          [&](std::string_view key, std::span<const std::byte>) -> Result<bool> {
            if (key.size() < 8)
              return Fail(ErrorCode::kDataLoss, "an index key without generation");
            const uint64_t generation = ReadBigEndian(key.data());
            if (!live.contains(generation)) {
              batch.DeleteRange(column, NumberKey(generation), NumberKey(generation + 1));
            }
            if (generation != ~uint64_t{0}) next = generation + 1;
            return false;
          }));
    }
  }
  if (batch.size_bytes() == 0) return {};
  CAIRN_TRY(state.index->Write(batch));
  return state.index->Flush();
}

namespace {

using AddRecords = std::function<Result<void>(StepIndexer&)>;

Result<StepEntry> IndexStepRecords(StoreState& state, const AddRecords& add, uint64_t generation,
                                   const std::vector<StepEntry>& replaced, Removal* removal,
                                   IndexBatch& batch) CAIRN_REQUIRES(state.write_mutex) {
  StepIndexer indexer(state, generation);
  CAIRN_TRY(add(indexer));
  CAIRN_TRY_ASSIGN(StepEntry entry, indexer.Finish(batch));
  CAIRN_TRY_ASSIGN(*removal, PlanRemoval(state, replaced, indexer.used_segments()));
  AddToBatch(state, *removal, &entry, batch);
  CAIRN_TRY(MarkRemoval(state, *removal));
  return entry;
}

Result<StepEntry> IndexStepFrom(StoreState& state, const AddRecords& add, uint64_t generation,
                                const std::vector<StepEntry>& replaced, Removal* removal)
    CAIRN_REQUIRES(state.write_mutex) {
  IndexBatch batch;
  Result<StepEntry> entry = IndexStepRecords(state, add, generation, replaced, removal, batch);
  if (!entry) {
    // What was written to memory must not become durable with the next commit.
    (void)DropOrphanRecords(state);
    return entry;
  }
  const Result<void> committed =
      CommitBatch(state, batch, [&state, generation] { return HasGeneration(state, generation); });
  if (!committed) {
    if (!state.outcome_unknown) UndoRemoval(state, *removal);
    return Fail(committed.error());
  }
  return entry;
}

}  // namespace

Result<StepEntry> IndexStep(StoreState& state, const std::vector<ManifestFile>& manifests,
                            uint64_t generation, const std::vector<StepEntry>& replaced,
                            Removal* removal) {
  const auto add = [&manifests](StepIndexer& indexer) -> Result<void> {
    for (const ManifestFile& manifest : manifests) CAIRN_TRY(indexer.Add(manifest));
    return {};
  };
  return IndexStepFrom(state, add, generation, replaced, removal);
}

Result<StepEntry> IndexStep(StoreState& state, CollectedRecords& records,
                            const ManifestRef& manifest, uint64_t generation,
                            const std::vector<StepEntry>& replaced, Removal* removal) {
  const auto add = [&](StepIndexer& indexer) { return indexer.Add(records, manifest); };
  return IndexStepFrom(state, add, generation, replaced, removal);
}

}  // namespace cairn::kv::internal
