// A round chooses segments, moves what steps use of them, rewrites the steps, and commits. Rounds
// are repeated until no segment is left that is worth it.

#include "kv/compact.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kv/base/div.h"
#include "kv/maintain/internal/live_ranges.h"
#include "kv/maintain/internal/payload_mover.h"
#include "kv/maintain/internal/step_rewriter.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv {
namespace {

using internal::CompactContext;
using internal::LiveRanges;
using internal::StoreState;

constexpr uint64_t kMaxChunkBytes = 64 << 20;      // limit of a chunk that is compressed
constexpr double kMinGain = 0.05;                  // part of the rewritten files
constexpr int kMaxAttempts = 100;                  // attempts at a round whose payload was removed
constexpr uint64_t kFileOverheadBytes = 3 * 4096;  // overhead of a segment without its page digests

/// Returns whether one segment with the used bytes is clearly smaller than the files are.
bool IsWorthwhile(uint64_t file_bytes, uint64_t live_bytes) {
  if (live_bytes == 0) return true;
  const uint64_t expected_bytes = RoundUp(live_bytes, 4096) + kFileOverheadBytes;
  return static_cast<double>(expected_bytes) <= (1 - kMinGain) * static_cast<double>(file_bytes);
}

class Compaction {
 public:
  Compaction(Store& store, const CompactOptions& options)
      : store_(store),
        state_(internal::StoreAccess::StateOf(store)),
        options_(options),
        throttle_(options.max_bytes_per_second),
        context_{.state = state_,
                 .options = options,
                 .throttle = throttle_,
                 .progress = [this](uint64_t bytes) { return ReportProgress(bytes); },
                 .read_pages = {}} {}

  Result<CompactReport> Run() {
    while (true) {
      CAIRN_TRY_ASSIGN(const std::set<uint64_t> done, RunCompleteRound());
      if (done.empty() || options_.dry_run) {
        report_.waiting_bytes = internal::WaitingBytes(state_);
        return report_;
      }
      finished_.insert(done.begin(), done.end());
    }
  }

 private:
  /// Returns what RunRound returns. Without a grace period, a commit of another thread may remove
  /// payload that the round reads; then the round is repeated.
  Result<std::set<uint64_t>> RunCompleteRound() {
    const CompactReport before = report_;
    const uint64_t done_before_bytes = done_bytes_, total_before_bytes = total_bytes_;
    for (int attempt = 1;; ++attempt) {
      const uint64_t root = internal::CurrentRoot(state_)->root.number;
      CAIRN_TRY_ASSIGN(const auto snapshot, store_.Latest());
      auto done = RunRound(snapshot);
      const bool is_lost = !done && done.error().code == ErrorCode::kNotFound &&
                           internal::CurrentRoot(state_)->root.number != root;
      if (!is_lost || attempt == kMaxAttempts) return done;
      report_ = before;
      done_bytes_ = done_before_bytes;
      total_bytes_ = total_before_bytes;
    }
  }

  /// Returns the segments that were rewritten; none if there is nothing left to do.
  Result<std::set<uint64_t>> RunRound(const std::shared_ptr<const Snapshot>& snapshot) {
    CAIRN_TRY_ASSIGN(const auto segments, snapshot->Segments());
    CAIRN_TRY_ASSIGN(LiveRanges ranges, CollectRanges(*snapshot, segments));
    std::set<uint64_t> wanted;
    if (options_.fold_all) wanted = SegmentsToFold(ranges);
    if (options_.compress) CAIRN_TRY(FindCompressible(*snapshot, ranges, wanted));
    const std::set<uint64_t> chosen = Choose(segments, ranges, wanted);
    if (chosen.empty() || options_.dry_run) return chosen;
    ranges.Keep(chosen);
    const std::string name =
        internal::CompactionName(state_.session, internal::NewObjectId(state_.epoch).id);
    internal::PayloadMover mover(context_, snapshot, name);
    if (options_.decode) {
      const auto folded = ranges.Foldable(kMaxChunkBytes);
      for (const internal::ChunkVersion* const chunk : folded) ranges.Replace(*chunk);
      CAIRN_TRY(mover.Rewrite(folded));
      report_.folded_chunks += folded.size();
    }
    if (options_.compress) {
      auto compressible = ranges.Compressible(kMaxChunkBytes);
      std::erase_if(compressible, [](const auto* chunk) { return !chunk->is_compressible; });
      CAIRN_TRY(mover.Rewrite(compressible));
      for (const internal::ChunkVersion* const chunk : compressible) {
        if (!chunk->is_compressed) continue;
        ranges.Replace(*chunk);
        ++report_.compressed_chunks;
      }
    }
    CAIRN_TRY(mover.Move(ranges.InOrder()));
    CAIRN_TRY_ASSIGN(const uint64_t step_count, CommitMoves(state_, ranges, mover));
    report_.rewritten_steps += step_count;
    report_.new_segments += mover.segments().size();
    for (const SegmentInfo& info : mover.segments()) {
      report_.new_bytes += info.file_bytes;
      finished_.insert(info.segment_id);
    }
    return chosen;
  }

  /// Reads all chunk records, the newest step first.
  Result<LiveRanges> CollectRanges(const Snapshot& snapshot,
                                   const std::vector<SegmentInfo>& segments) {
    std::set<uint64_t> ids;
    for (const SegmentInfo& info : segments) ids.insert(info.segment_id);
    LiveRanges ranges(std::move(ids), options_.compress != nullptr);
    CAIRN_TRY_ASSIGN(std::vector<StepInfo> steps, snapshot.Steps());
    std::ranges::reverse(steps);
    for (const StepInfo& step : steps) {
      CAIRN_TRY(ReportProgress(0));
      CAIRN_TRY(snapshot.Scan(
          Column::kChunks, step, "",
          [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
            auto chunk = internal::DecodeChunk(record);
            if (!chunk) return Fail(std::move(chunk).error().WithStep(step.step));
            CAIRN_TRY(ranges.Add(key, *chunk));
            return true;
          }));
    }
    return ranges;
  }

  /// Chooses the segments with the largest unused part, as many as one round rewrites.
  /// In addition, the segments in `wanted`.
  std::set<uint64_t> Choose(const std::vector<SegmentInfo>& segments, const LiveRanges& ranges,
                            const std::set<uint64_t>& wanted) {
    struct Candidate {
      uint64_t id = 0;
      uint64_t file_bytes = 0;
      uint64_t live_bytes = 0;
      double dead() const {
        return 1 - static_cast<double>(live_bytes) / static_cast<double>(file_bytes);
      }
    };
    std::vector<Candidate> candidates;
    const bool is_first = report_.segment_bytes == 0;
    for (const SegmentInfo& info : segments) {
      const Candidate candidate{.id = info.segment_id,
                                .file_bytes = std::max<uint64_t>(info.file_bytes, 1),
                                .live_bytes = ranges.live_bytes(info.segment_id)};
      if (is_first) {
        report_.segment_bytes += candidate.file_bytes;
        report_.live_bytes += candidate.live_bytes;
      }
      if (finished_.contains(candidate.id)) continue;
      if (candidate.dead() <= options_.max_dead && !wanted.contains(candidate.id)) continue;
      candidates.push_back(candidate);
    }
    std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::dead);
    // Small segments consist of headers and gaps mostly. Together they may become smaller, even if
    // each of them alone would not.
    Candidate sum, chosen_sum;
    size_t chosen_count = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (i > 0 && sum.live_bytes + candidates[i].live_bytes > options_.commit_bytes) break;
      sum.file_bytes += candidates[i].file_bytes;
      sum.live_bytes += candidates[i].live_bytes;
      if (!wanted.contains(candidates[i].id) && !IsWorthwhile(sum.file_bytes, sum.live_bytes)) {
        continue;
      }
      chosen_sum = sum;
      chosen_count = i + 1;
    }
    std::set<uint64_t> chosen;
    for (size_t i = 0; i < chosen_count; ++i) chosen.insert(candidates[i].id);
    if (chosen.empty()) return chosen;
    report_.old_segments += chosen.size();
    report_.old_bytes += chosen_sum.file_bytes;
    report_.moved_bytes += chosen_sum.live_bytes;
    total_bytes_ += chosen_sum.live_bytes;
    return chosen;
  }

  /// Returns the segments with the earlier versions of chunks that can be written without deltas.
  static std::set<uint64_t> SegmentsToFold(LiveRanges& ranges) {
    std::set<uint64_t> segments;
    for (const internal::ChunkVersion* const chunk : ranges.Foldable(kMaxChunkBytes)) {
      for (const Extent& extent : chunk->entry.extents.payload) segments.insert(extent.segment_id);
    }
    return segments;
  }

  /// Compresses a page in the middle of each chunk that could be compressed, and adds the segments
  /// of chunks for which it pays off.
  Result<void> FindCompressible(const Snapshot& snapshot, LiveRanges& ranges,
                                std::set<uint64_t>& segments) {
    constexpr size_t kBatchPages = 256;
    auto chunks = ranges.Compressible(kMaxChunkBytes);
    std::erase_if(chunks, [&](const internal::ChunkVersion* chunk) {
      return finished_.contains(chunk->entry.extents.payload.front().segment_id);
    });
    std::vector<std::byte> pages(std::min(kBatchPages, chunks.size()) * kPageBytes);
    for (size_t begin = 0; begin < chunks.size(); begin += kBatchPages) {
      CAIRN_TRY(ReportProgress(0));
      const auto batch =
          std::span(chunks).subspan(begin, std::min(kBatchPages, chunks.size() - begin));
      std::vector<ReadRange> reads;
      for (const internal::ChunkVersion* const chunk : batch) {
        const Extent& extent = chunk->entry.extents.payload.front();
        const Extent page = extent.From((PageCount(extent.length_bytes) - 1) / 2 * kPageBytes);
        reads.push_back({.segment_id = page.segment_id,
                         .offset_bytes = page.offset_bytes,
                         .target = std::span(pages).subspan(
                             reads.size() * kPageBytes, std::min(page.length_bytes, kPageBytes))});
      }
      CAIRN_TRY(snapshot.Read(reads, 1, [](size_t, auto) { return Result<void>(); }));
      for (size_t i = 0; i < batch.size(); ++i) {
        constexpr std::array<uint64_t, 1> kNoDigest{};
        if (!options_.compress(reads[i].target, internal::ElementBytes(batch[i]->entry),
                               kNoDigest)) {
          continue;
        }
        batch[i]->is_compressible = true;
        segments.insert(reads[i].segment_id);
      }
    }
    return {};
  }

  Result<void> ReportProgress(uint64_t bytes) {
    done_bytes_ += bytes;
    if (!options_.progress) return {};
    if (options_.progress(done_bytes_, total_bytes_)) return {};
    return Fail(Error{.code = ErrorCode::kCancelled,
                      .message = "the compaction was stopped; what it has committed remains",
                      .file = state_.storage->address()});
  }

  Store& store_;
  StoreState& state_;
  const CompactOptions& options_;
  Throttle throttle_;
  const CompactContext context_;
  CompactReport report_;
  std::set<uint64_t> finished_;  // segments that are not rewritten again
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace

Result<CompactReport> Compact(Store& store, const CompactOptions& options) {
  if (!(options.max_dead >= 0 && options.max_dead <= 1)) {
    return Fail(ErrorCode::kInvalidArgument, "the unused part of a segment is from 0 to 1");
  }
  StoreState& state = internal::StoreAccess::StateOf(store);
  std::unique_ptr<internal::Turn> turn;
  if (!options.dry_run) {
    CAIRN_TRY_ASSIGN(turn, internal::TakeCompactTurn(state));
  }
  Result<CompactReport> report = Compaction(store, options).Run();
  if (report) return report;
  return Fail(internal::ExplainFailure(state, std::move(report).error()));
}

}  // namespace cairn::kv
