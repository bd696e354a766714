// How an open for writing repairs what a crash left behind.
//
// The files in pending/ and commits/ and the index determine together how far each commit and each
// delete got (kv/store.h). The rules, each of which is idempotent:
//   1. *.deleting of a step that the index has: the delete was not committed; the file gets its
//      former name. If the index does not have the step, the delete was committed; the file is
//      removed.
//   2. A pending manifest of an attempt that the index has is renamed to commits/. Other attempts
//      are removed.
//   3. A manifest in commits/ that the index lacks: the index lost a commit; the step is added to
//      it again.
//   4. Records of generations that no step has are deleted.
//   5. Segment files to which the index does not refer are removed, unless rule 3 failed for some
//      step: then no segment is removed, because the lost step may need it.

#include "kv/internal/commit/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "kv/internal/commit/commit.h"
#include "kv/internal/commit/manifest.h"
#include "kv/internal/io/fault_point.h"

namespace cairn::kv::internal {
namespace {

Result<void> ResolveDeletes(const StoreState& state) {
  CAIRN_TRY_ASSIGN(const std::vector<CommitFile> files, ListCommits(state.paths));
  for (const CommitFile& file : files) {
    if (!file.deleting) continue;
    if (HasGeneration(state, file.generation)) {
      CAIRN_TRY(UnmarkDeleting(state.paths, file.generation, file.rank));
    } else {
      CAIRN_TRY(RemoveFile(DeletingPath(state.paths, file.generation, file.rank)));
    }
  }
  return {};
}

/// Moves the manifests of a committed attempt to commits/.
Result<void> FinishCommit(const StoreState& state, const StepEntry& entry) {
  for (const ManifestRef& manifest : entry.manifests) {
    const std::string from = state.paths.pending_manifest(entry.info.attempt, manifest.rank);
    if (!Exists(from)) continue;
    CAIRN_TRY(
        Rename(from, state.paths.manifest(entry.info.generation, manifest.rank), "commit.rename"));
  }
  return SyncDirectory(state.paths.commits(), "commit.directory_sync");
}

/// Returns the committed step of an attempt; nothing if it was not committed.
std::optional<StepEntry> FindAttempt(const StoreState& state, const std::string& attempt) {
  const MutexLock lock(state.mutex);
  const auto found = std::ranges::find_if(
      state.steps, [&](const StepEntry& entry) { return entry.info.attempt == attempt; });
  return found == state.steps.end() ? std::nullopt : std::optional(*found);
}

Result<void> ResolvePending(const StoreState& state) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> attempts, ListDirectory(state.paths.pending()));
  for (const std::string& attempt : attempts) {
    if (const auto committed = FindAttempt(state, attempt)) {
      CAIRN_TRY(FinishCommit(state, *committed));
    }
    CAIRN_TRY(RemoveTree(state.paths.attempt(attempt)));
  }
  return {};
}

/// Checks that every segment to which the manifests refer exists.
Result<void> CheckSegments(const StoreState& state, const std::vector<ManifestFile>& manifests) {
  for (const ManifestFile& manifest : manifests) {
    std::set<uint64_t> used;
    CAIRN_TRY(ReadManifest(
        manifest.path,
        [&](Column column, std::string_view, std::span<const std::byte> value) -> Result<void> {
          if (column == Column::kChunks) {
            CAIRN_TRY_ASSIGN(const Extents extents, DecodeChunkExtents(value));
            for (const Extent& extent : extents) used.insert(extent.segment_id);
          }
          return {};
        }));
    CAIRN_TRY_ASSIGN(const std::vector<std::string> names, ListDirectory(state.paths.segments()));
    for (const std::string& name : names) {
      if (const auto id = ParseSegmentName(name)) used.erase(*id);
    }
    if (!used.empty()) {
      return Fail(
          Error{.code = ErrorCode::kDataLoss,
                .message = fmt::format("{} segment(s) to which it refers are missing", used.size()),
                .file = manifest.path});
    }
  }
  return {};
}

/// Indexes a step again from its manifests.
Result<void> Restore(StoreState& state, uint64_t generation, std::vector<ManifestFile> manifests)
    CAIRN_REQUIRES(state.write_mutex) {
  CAIRN_TRY_ASSIGN(const ManifestHeader header, ReadManifestHeader(manifests.front().path));
  if (header.store_uuid != state.uuid) {
    return Fail(ErrorCode::kDataLoss, "the manifest belongs to another store");
  }
  if (manifests.size() != header.world_size) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("{} of its {} manifests exist", manifests.size(), header.world_size));
  }
  CAIRN_TRY(CheckSegments(state, manifests));
  // If the step has a newer generation, that one remains.
  std::vector<StepEntry> replaced;
  {
    const MutexLock lock(state.mutex);
    replaced = FindEntries(state, header.step);
  }
  for (const StepEntry& entry : replaced) {
    if (entry.info.generation > generation) {
      for (const ManifestFile& manifest : manifests) CAIRN_TRY(RemoveFile(manifest.path));
      return {};
    }
  }
  Removal removal;
  CAIRN_TRY(IndexStep(state, manifests, generation, replaced, &removal));
  FinishRemoval(state, removal);
  return RefreshSteps(state);
}

/// Returns false if a lost step could not be restored.
Result<bool> RestoreLost(StoreState& state) CAIRN_REQUIRES(state.write_mutex) {
  CAIRN_TRY_ASSIGN(const std::vector<CommitFile> files, ListCommits(state.paths));
  std::map<uint64_t, std::vector<ManifestFile>> lost;
  for (const CommitFile& file : files) {
    {
      const MutexLock lock(state.mutex);
      state.next_generation = std::max(state.next_generation, file.generation + 1);
    }
    if (file.deleting || HasGeneration(state, file.generation)) continue;
    lost[file.generation].push_back(
        {.path = state.paths.manifest(file.generation, file.rank), .rank = file.rank});
  }
  bool all_fine = true;
  for (const auto& [generation, manifests] : lost) {
    const std::string path = manifests.front().path;
    Result<void> restored = Restore(state, generation, manifests);
    if (restored) {
      state.recovery_notes.push_back(Error{
          .code = ErrorCode::kDataLoss,
          .message = "the index had lost this committed step; it was restored from its manifest",
          .file = path});
    } else {
      all_fine = false;
      Error error = std::move(restored).error().WithFile(path);
      error.message =
          "the index has lost a committed step that cannot be restored: " + error.message;
      state.recovery_notes.push_back(error);
      state.lost_steps.push_back(std::move(error));
    }
  }
  return all_fine;
}

Result<void> SweepSegments(StoreState& state) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, ListDirectory(state.paths.segments()));
  for (const std::string& name : names) {
    const auto id = ParseSegmentName(name);
    if (!id) continue;
    CAIRN_TRY_ASSIGN(const auto record, state.index->Get(Column::kSegments, NumberKey(*id)));
    if (!record) CAIRN_TRY(RemoveFile(state.paths.segments() + "/" + name));
  }
  return {};
}

}  // namespace

bool IndexIsWhole(const StorePaths& paths, std::chrono::milliseconds deadline) {
  const auto index = Index::Open(paths.root, /*writable=*/false, /*create=*/false, deadline);
  if (!index) return false;
  const auto steps = LoadSteps(**index);
  const auto files = ListCommits(paths);
  bool whole = steps.has_value() && files.has_value();
  if (!(*index)->VerifyTables([&whole](const Error&) { whole = false; }) || !whole) return false;
  return std::ranges::all_of(*files, [&steps](const CommitFile& file) {
    return file.deleting || std::ranges::any_of(*steps, [&file](const StepEntry& entry) {
             return entry.info.generation == file.generation;
           });
  });
}

Result<void> UndoAllDeletes(StoreState& state) {
  CAIRN_TRY_ASSIGN(const std::vector<CommitFile> files, ListCommits(state.paths));
  for (const CommitFile& file : files) {
    if (file.deleting) CAIRN_TRY(UnmarkDeleting(state.paths, file.generation, file.rank));
  }
  return SyncDirectory(state.paths.commits(), "delete.directory_sync");
}

Result<void> Recover(StoreState& state, bool sweep) {
  // A copy of a store may lack the empty directories.
  for (const std::string& directory :
       {state.paths.segments(), state.paths.pending(), state.paths.commits()}) {
    CAIRN_TRY(MakeDirectory(directory));
  }
  CAIRN_TRY(RefreshSteps(state));
  CAIRN_TRY(ResolveDeletes(state));
  CAIRN_TRY(ResolvePending(state));
  CAIRN_TRY(DropOrphanRecords(state));
  CAIRN_TRY_ASSIGN(const bool whole, RestoreLost(state));
  return whole && sweep ? SweepSegments(state) : Result<void>();
}

}  // namespace cairn::kv::internal
