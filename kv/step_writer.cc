// Adds payload and records to one part, and commits the step.

#include "kv/step_writer.h"

#include <utility>

#include "kv/internal/commit/root_change.h"
#include "kv/internal/range_merge.h"
#include "kv/internal/rank_parts.h"
#include "kv/internal/records/kv_records.h"
#include "kv/internal/shared_records.h"
#include "kv/internal/step_attempt.h"
#include "kv/internal/step_commit.h"

namespace cairn::kv {

using internal::StepAttempt;

namespace {

/// Another writer may have removed what this one has written or waits for. Then its name is the
/// better error.
Error NameOtherWriter(const StepAttempt& attempt, Error error) {
  if (attempt.store->outcome_unknown) return error;
  const Result<void> is_writer = internal::CheckStillWriter(*attempt.store);
  if (is_writer || is_writer.error().code != ErrorCode::kConflict) return error;
  return Error(is_writer.error()).WithStep(attempt.step);
}

}  // namespace

StepWriter::StepWriter(std::unique_ptr<StepAttempt> attempt) : attempt_(std::move(attempt)) {}

StepWriter::~StepWriter() {
  // In a forked child, the files and threads of the attempt are those of the parent.
  if (attempt_ != nullptr && !internal::CheckNotForked(*attempt_->store)) (void)attempt_.release();
}

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
  CAIRN_TRY(internal::CheckNotForked(*attempt_->store));
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
  CAIRN_TRY(internal::CheckNotForked(*attempt_->store));
  CAIRN_TRY(attempt_->CheckUsable());
  attempt_->failed = true;  // until the end, as in Append
  CAIRN_TRY_ASSIGN(auto extents, attempt_->segments.AppendPages(payload, ranges, page_digests));
  attempt_->failed = false;
  return extents;
}

Result<void> StepWriter::Drain() {
  CAIRN_TRY(internal::CheckNotForked(*attempt_->store));
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

Result<void> StepWriter::AddChunk(std::string_view key, ChunkEntry entry, bool reused) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  ++attempt.chunk_count;
  if (reused) {
    ++attempt.reused_chunk_count;
    return attempt.AddEntry(Column::kChunks, key, internal::EncodeChunk(entry));
  }
  // The offset of its page digests is known only when the segment is sealed.
  attempt.segments.AddChunk(key, std::move(entry));
  return {};
}

bool StepWriter::IsInCurrentSegment(const ChunkExtents& extents) const {
  bool is_here = true;
  extents.ForEach([&](const Extent& extent) {
    is_here = is_here && attempt_->segments.IsCurrent(extent.segment_id);
  });
  return is_here;
}

void StepWriter::ReferTo(const StepInfo& step) { attempt_->referred_steps.push_back(step); }

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

Result<void> StepWriter::Gather(RankRecords& others) {
  CAIRN_TRY(attempt_->CheckUsable());
  Result<void> gathered = internal::GatherParts(*attempt_, others);
  if (gathered) return gathered;
  return Fail(NameOtherWriter(*attempt_, std::move(gathered).error()));
}

bool StepWriter::gathers_own_chunks() const { return attempt_->is_indexed(); }

Result<void> StepWriter::MergeRange(RangeRecords& records) {
  CAIRN_TRY(internal::CheckNotForked(*attempt_->store));
  BeginOptions options = attempt_->options;
  options.attempt = attempt_->attempt;
  return internal::MergeRange(*attempt_->store, attempt_->step, options, records);
}

Result<void> StepWriter::Prepare(const StepSummary& summary) {
  CAIRN_TRY(internal::CheckNotForked(*attempt_->store));
  CAIRN_TRY(attempt_->CheckUsable());
  return internal::PreparePart(*attempt_, summary);
}

Result<StepInfo> StepWriter::AwaitDecision() {
  CAIRN_TRY_ASSIGN(attempt_->prepared.generation, internal::AwaitGeneration(*attempt_));
  return attempt_->prepared;
}

// --- commit

Result<StepInfo> StepWriter::Commit(const StepSummary& summary) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(internal::CheckNotForked(*attempt_->store));
  CAIRN_TRY(attempt.CheckUsable());
  CAIRN_CHECK(attempt.has_structure && !attempt.store->joined &&
              attempt.gathered == attempt.has_ranks());
  attempt.failed = true;
  const Result<void> ended = internal::EndPayload(attempt);
  Result<StepInfo> committed =
      ended ? internal::CommitStep(attempt, summary) : std::unexpected(ended.error());
  if (committed) return committed;
  return Fail(NameOtherWriter(attempt, std::move(committed).error()));
}

Result<StepInfo> StepWriter::CommitSame(const StepInfo& base) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(internal::CheckNotForked(*attempt.store));
  CAIRN_TRY(attempt.CheckUsable());
  CAIRN_CHECK(!attempt.has_ranks() && !attempt.has_structure && attempt.chunk_count == 0 &&
              attempt.written_bytes() == 0);
  attempt.failed = true;
  Result<StepInfo> committed = internal::CommitSameStep(attempt, base);
  if (committed) return committed;
  return Fail(NameOtherWriter(attempt, std::move(committed).error()));
}

}  // namespace cairn::kv
