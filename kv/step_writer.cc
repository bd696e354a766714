// Adds payload and records to one part, and commits the step.

#include "kv/step_writer.h"

#include <utility>

#include "kv/base/digest.h"
#include "kv/commit/internal/rank_parts.h"
#include "kv/commit/internal/step_attempt.h"
#include "kv/commit/internal/step_commit.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/root_change.h"

namespace cairn::kv {

using internal::StepAttempt;

namespace {

/// Another writer may have removed what this one has written or waits for. Then its name is the
/// better error.
template <typename T>
Result<T> NameOtherWriter(const StepAttempt& attempt, Result<T> result) {
  if (result) return result;
  return Fail(
      internal::ExplainFailure(*attempt.store, std::move(result).error()).WithStep(attempt.step));
}

/// kFailedPrecondition: the call is not one that may follow those before (kv/step_writer.h).
Result<void> CheckOrder(const StepAttempt& attempt, bool is_in_order, const char* requirement) {
  if (is_in_order) return {};
  return Fail(
      Error{.code = ErrorCode::kFailedPrecondition, .message = requirement, .step = attempt.step});
}

Error Invalid(const StepAttempt& attempt, const char* message) {
  return {.code = ErrorCode::kInvalidArgument, .message = message, .step = attempt.step};
}

bool IsRankZeroOfSeveral(const StepAttempt& attempt) {
  return attempt.has_ranks() && !attempt.store->joined;
}

/// Performs `work`. If it fails, the attempt cannot be committed: a chunk may have been appended in
/// part.
template <typename Work>
auto Perform(StepAttempt& attempt, const Work& work) -> decltype(work()) {
  attempt.failed = true;
  auto result = work();
  attempt.failed = !result;
  return result;
}

Result<void> CheckPageBits(const StepAttempt& attempt, uint8_t page_bits) {
  if (page_bits >= kMinPageBits && page_bits <= kMaxPageBits) return {};
  return Fail(Invalid(attempt, "a page has 4 KiB to 1 MiB"));
}

/// kInvalidArgument: `page_digests` do not match the payload.
Result<void> CheckPageDigests(const StepAttempt& attempt, const Payload& payload,
                              std::span<const uint64_t> page_digests, uint8_t page_bits) {
  if (page_digests.size() == PageCount(payload.length_bytes(), uint64_t{1} << page_bits)) return {};
  return Fail(Invalid(attempt, "a payload needs one digest per page"));
}

}  // namespace

StepWriter::StepWriter(std::unique_ptr<StepAttempt> attempt) : attempt_(std::move(attempt)) {}

StepWriter::~StepWriter() {
  // In a forked child, the files and threads of the attempt belong to the parent.
  if (attempt_ != nullptr && !internal::CheckNotForked(*attempt_->store)) (void)attempt_.release();
}

uint64_t StepWriter::written_bytes() const { return attempt_->segments.written_bytes(); }

// --- payload

Result<void> StepWriter::UseBlocks(std::shared_ptr<BlockPool> blocks) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, blocks != nullptr && !attempt_->segments.runs_ahead(),
                       "other blocks can be used once per step"));
  return Perform(*attempt_, [&] { return attempt_->segments.UseBlocks(std::move(blocks)); });
}

Result<StepWriter::Appended> StepWriter::Append(const Payload& payload, SegmentAlignment alignment,
                                                std::span<const uint64_t> page_digests,
                                                uint8_t page_bits) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckPageBits(*attempt_, page_bits));
  if (payload.length_bytes() == 0) return Fail(Invalid(*attempt_, "a chunk must have bytes"));
  if (!page_digests.empty() || payload.queue() != nullptr) {
    CAIRN_TRY(CheckPageDigests(*attempt_, payload, page_digests, page_bits));
  }
  CAIRN_TRY_ASSIGN(const auto appended, Perform(*attempt_, [&] {
                     return attempt_->segments.Append(payload, alignment, page_digests, page_bits);
                   }));
  return Appended{.extent = appended.extent, .digest = appended.digest};
}

Result<std::vector<Extent>> StepWriter::AppendPages(const Payload& payload,
                                                    std::span<const PageRange> ranges,
                                                    std::span<const uint64_t> page_digests,
                                                    uint8_t page_bits) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckPageBits(*attempt_, page_bits));
  CAIRN_TRY(CheckPageDigests(*attempt_, payload, page_digests, page_bits));
  uint64_t end_page = 0;
  for (const PageRange& range : ranges) {
    if (range.begin_page < end_page || range.begin_page >= range.end_page ||
        range.end_page > page_digests.size()) {
      return Fail(Invalid(*attempt_, "ranges of pages must not be empty, and must ascend"));
    }
    end_page = range.end_page;
  }
  return Perform(*attempt_, [&] {
    return attempt_->segments.AppendPages(payload, ranges, page_digests, page_bits);
  });
}

Result<void> StepWriter::Drain() {
  CAIRN_TRY(attempt_->CheckUsable());
  return Perform(*attempt_, [&] { return attempt_->segments.Drain(); });
}

// --- records

Result<void> StepWriter::AddRecord(Column column, std::string_view key,
                                   std::span<const std::byte> record) {
  CAIRN_TRY(attempt_->CheckUsable());
  if (column != Column::kTensors && column != Column::kValues && column != Column::kApplication) {
    return Fail(Invalid(*attempt_, "records of this kind cannot be added"));
  }
  if (column == Column::kTensors) {
    attempt_->segments.SetTensor(key, record);
    if (attempt_->has_ranks() && !attempt_->gathered) return {};
  }
  return attempt_->AddEntry(column, key, record);
}

Result<void> StepWriter::AddChunk(std::string_view key, ChunkEntry entry, bool reused) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  bool is_appended = false;
  entry.extents.ForEach([&](const Extent& extent) {
    is_appended = is_appended || attempt.segments.IsCurrent(extent.segment_id);
  });
  CAIRN_TRY(CheckOrder(attempt, reused || is_appended,
                       "a chunk must be added before the next one is appended"));
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
  CAIRN_TRY(CheckOrder(*attempt_, attempt_->has_ranks() && !attempt_->gathered,
                       "only several ranks have shared records, and only before Gather"));
  return internal::AddSharedRecords(*attempt_, records);
}

Result<void> StepWriter::SetStructure(std::span<const std::byte> record) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, !attempt_->has_structure && !attempt_->store->joined,
                       "rank 0 sets the structure of a step once"));
  attempt_->structure = PayloadDigest(record);
  attempt_->has_structure = true;
  return attempt_->AddEntry(Column::kStructures, "", record);
}

// --- communication with the other ranks

Result<void> StepWriter::Gather(RankRecords& others) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, IsRankZeroOfSeveral(*attempt_) && !attempt_->gathered,
                       "in a multi-rank store, rank 0 gathers the parts once"));
  return NameOtherWriter(*attempt_, internal::GatherParts(*attempt_, others));
}

Result<void> StepWriter::Prepare(const StepSummary& summary) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, attempt_->store->joined,
                       "rank 0 commits the step; only the other ranks prepare parts of it"));
  return internal::PreparePart(*attempt_, summary);
}

Result<StepInfo> StepWriter::AwaitDecision() {
  CAIRN_TRY(CheckOrder(*attempt_, attempt_->store->joined && attempt_->finished,
                       "a rank awaits the decision of rank 0 after it has prepared its part"));
  CAIRN_TRY_ASSIGN(attempt_->prepared.generation, internal::AwaitGeneration(*attempt_));
  return attempt_->prepared;
}

// --- commit

Result<StepInfo> StepWriter::Commit(const StepSummary& summary) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  CAIRN_TRY(CheckOrder(attempt, !attempt.store->joined && attempt.gathered == attempt.has_ranks(),
                       "rank 0 commits the step, after it has gathered the parts of other ranks"));
  CAIRN_TRY(CheckOrder(attempt, attempt.has_structure, "the step has no structure yet"));
  attempt.failed = true;
  return NameOtherWriter(attempt, internal::CommitStep(attempt, summary));
}

Result<StepInfo> StepWriter::CommitSame(const StepInfo& base) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  CAIRN_TRY(CheckOrder(attempt,
                       !attempt.has_ranks() && !attempt.has_structure && attempt.chunk_count == 0 &&
                           attempt.written_bytes() == 0,
                       "one rank commits a copy of a step, to which it has added nothing"));
  attempt.failed = true;
  return NameOtherWriter(attempt, internal::CommitSameStep(attempt, base));
}

}  // namespace cairn::kv
