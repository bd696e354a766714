// Adds payload and records to one part, and commits the step.

#include "kv/step_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "kv/internal/commit/attempt_outcome.h"
#include "kv/internal/commit/commit.h"
#include "kv/internal/io/fault_point.h"
#include "kv/internal/rank_parts.h"
#include "kv/internal/step_attempt.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::kv {

using internal::StepAttempt;
using internal::StepEntry;

StepWriter::StepWriter(std::unique_ptr<StepAttempt> attempt) : attempt_(std::move(attempt)) {}
StepWriter::~StepWriter() = default;

uint64_t StepWriter::written_bytes() const { return attempt_->written_bytes(); }

// --- payload

Result<void> StepWriter::UseBlocks(std::shared_ptr<BlockPool> blocks) {
  CAIRN_TRY(attempt_->CheckUsable());
  attempt_->failed = true;  // until the end, as in Append
  CAIRN_TRY(attempt_->segments.UseBlocks(std::move(blocks)));
  attempt_->failed = false;
  return {};
}

Result<StepWriter::Appended> StepWriter::Append(const Payload& payload, SegmentAlignment alignment,
                                                std::span<const uint64_t> page_digests) {
  CAIRN_TRY(attempt_->CheckUsable());
  attempt_->failed =
      true;  // until the end: a chunk that was appended in part must not be committed
  CAIRN_TRY_ASSIGN(const auto appended,
                   attempt_->segments.Append(payload, alignment, page_digests));
  attempt_->failed = false;
  return Appended{.extent = appended.extent, .digest = appended.digest};
}

Result<std::vector<Extent>> StepWriter::AppendPages(const Payload& payload,
                                                    std::span<const PageRange> ranges,
                                                    std::span<const uint64_t> page_digests) {
  CAIRN_TRY(attempt_->CheckUsable());
  attempt_->failed = true;  // until the end, as in Append
  CAIRN_TRY_ASSIGN(auto extents, attempt_->segments.AppendPages(payload, ranges, page_digests));
  attempt_->failed = false;
  return extents;
}

Result<void> StepWriter::Drain() {
  CAIRN_TRY(attempt_->CheckUsable());
  attempt_->failed = true;  // until the end, as in Append
  CAIRN_TRY(attempt_->segments.Drain());
  attempt_->failed = false;
  return {};
}

// --- records

Result<void> StepWriter::AddRecord(Column column, std::string_view key,
                                   std::span<const std::byte> record) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_CHECK(column == Column::kTensors || column == Column::kValues);
  if (column == Column::kTensors) {
    attempt_->segments.SetTensor(key, record);
    if (attempt_->has_ranks() && !attempt_->gathered) return {};
  }
  return attempt_->AddEntry(column, key, record);
}

Result<void> StepWriter::AddChunk(std::string_view key, std::span<const uint64_t> sizes,
                                  const Extents& extents, const Digest& digest, uint64_t since_step,
                                  bool reused) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  ++attempt.chunk_count;
  for (const Extent& extent : extents) {
    if (reused || extent.segment_id != attempt.segments.segment_id()) {
      attempt.referenced_segments.insert(extent.segment_id);
    }
  }
  internal::ChunkEntry entry{.sizes = std::vector<uint64_t>(sizes.begin(), sizes.end()),
                             .extents = extents,
                             .digest = digest,
                             .since_step = since_step};
  if (reused) {
    ++attempt.reused_chunk_count;
    return attempt.AddEntry(Column::kChunks, key, internal::EncodeChunk(entry));
  }
  // The offset of its page digests is known only when the segment is sealed.
  attempt.segments.AddChunk(key, std::move(entry));
  return {};
}

Result<void> StepWriter::AddShared(std::span<const SharedRecord> records) {
  CAIRN_TRY(attempt_->CheckUsable());
  return internal::AddSharedRecords(*attempt_, records);
}

Result<void> StepWriter::SetStructure(std::span<const std::byte> record) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_CHECK(!attempt_->has_structure);
  attempt_->structure = PayloadDigest(record);
  attempt_->has_structure = true;
  return attempt_->AddEntry(Column::kStructures, "", record);
}

// --- communication with the other ranks

Result<void> StepWriter::Gather(const RankRecordCallback& on_record) {
  CAIRN_TRY(attempt_->CheckUsable());
  return internal::GatherParts(*attempt_, on_record);
}

Result<void> StepWriter::Prepare(const StepSummary& summary) {
  CAIRN_TRY(attempt_->CheckUsable());
  return internal::PreparePart(*attempt_, summary);
}

Result<StepInfo> StepWriter::AwaitDecision() {
  CAIRN_TRY_ASSIGN(attempt_->prepared.generation, internal::AwaitGeneration(*attempt_));
  return attempt_->prepared;
}

// --- commit

namespace {

Result<StepEntry> IndexRecords(StepAttempt& attempt, internal::StoreState& store,
                               uint64_t generation, const std::vector<StepEntry>& replaced,
                               internal::Removal* removal) CAIRN_REQUIRES(store.write_mutex) {
  if (attempt.has_ranks() && attempt.collected.complete()) {
    return internal::IndexStep(store, attempt.collected, attempt.manifest_ref, generation, replaced,
                               removal);
  }
  const std::vector<internal::ManifestFile> manifests = {
      {.path = attempt.PreparedManifestPath(), .rank = attempt.options.rank}};
  return internal::IndexStep(store, manifests, generation, replaced, removal);
}

Result<void> MoveManifest(const StepAttempt& attempt, const StepEntry& entry) {
  const internal::StorePaths& paths = attempt.store->paths;
  CAIRN_TRY(internal::Rename(attempt.PreparedManifestPath(),
                             paths.manifest(entry.info.generation, attempt.options.rank),
                             "commit.rename"));
  CAIRN_TRY(internal::SyncDirectory(paths.commits(), "commit.directory_sync"));
  return attempt.has_ranks() ? Result<void>()
                             : internal::RemoveTree(paths.attempt(attempt.attempt));
}

// Requires that the manifest is durable.
Result<StepEntry> CommitManifest(StepAttempt& attempt, internal::StoreState& store)
    CAIRN_REQUIRES(store.write_mutex) {
  uint64_t generation = 0;
  std::vector<StepEntry> replaced;
  {
    const MutexLock lock(store.mutex);
    generation = store.next_generation++;
    replaced = internal::FindEntries(store, attempt.step);
  }
  internal::Removal removal;
  CAIRN_TRY_ASSIGN(const StepEntry entry,
                   IndexRecords(attempt, store, generation, replaced, &removal));
  attempt.finished = true;  // the step exists, so its files must not be removed any more
  attempt.failed = false;
  {
    const MutexLock lock(store.mutex);
    store.committed_attempt = attempt.attempt;
  }
  // After a failure from here on the step is committed, and the next open completes the rest.
  if (Result<void> moved = MoveManifest(attempt, entry); !moved) {
    Error error = std::move(moved).error().WithStep(attempt.step);
    error.message = fmt::format(
        "step {} is committed and readable, but its manifest could not be moved to commits/: {}",
        attempt.step, error.message);
    (void)internal::RefreshSteps(store);
    return Fail(std::move(error));
  }
  if (attempt.has_ranks()) {
    // A rank that does not receive this finds the step in the index when its deadline passes.
    (void)internal::PublishCommitted(store.paths, attempt.attempt, entry.info.generation);
  }
  internal::FinishRemoval(store, removal);
  CAIRN_TRY(internal::RefreshSteps(store));
  (void)internal::FaultPoint("commit.done");
  return entry;
}

}  // namespace

Result<StepInfo> StepWriter::Commit(const StepSummary& summary) {
  StepAttempt& attempt = *attempt_;
  internal::StoreState& store = *attempt.store;
  CAIRN_TRY(attempt.CheckUsable());
  CAIRN_CHECK(attempt.has_structure && !store.joined && attempt.gathered == attempt.has_ranks());
  attempt.failed = true;
  CAIRN_TRY(attempt.SealSegments());
  // Until the index is written, no delete may remove a segment to which the manifest refers.
  const MutexLock write_lock(store.write_mutex);
  CAIRN_TRY(internal::CheckOutcomeKnown(store));
  if (attempt.has_ranks() && std::chrono::steady_clock::now() > attempt.options.deadline) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "the deadline passed before the commit; allow more time",
                      .step = attempt.step});
  }
  CAIRN_TRY(attempt.AddReferencedSegments());
  CAIRN_TRY(attempt.WriteStepRecord(summary));
  CAIRN_TRY_ASSIGN(attempt.manifest_ref, attempt.manifest->Finish());
  attempt.manifest.reset();
  CAIRN_TRY(
      internal::SyncDirectory(store.paths.attempt(attempt.attempt), "manifest.directory_sync"));
  CAIRN_TRY(internal::SyncDirectory(store.paths.pending(), "manifest.directory_sync"));
  CAIRN_TRY_ASSIGN(const StepEntry entry, CommitManifest(attempt, store));
  return entry.info;
}

}  // namespace cairn::kv
