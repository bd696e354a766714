// Payload is moved, and the records are written again, as a compaction does it.

#include "kv/rewrite_chunks.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "kv/base/copy_options.h"
#include "kv/maintain/compact_options.h"
#include "kv/maintain/internal/live_ranges.h"
#include "kv/maintain/internal/payload_mover.h"
#include "kv/maintain/internal/step_rewriter.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/internal/object_names.h"
#include "kv/store.h"

namespace cairn::kv {

Result<ReplaceReport> ReplacePayload(Store& store, const PayloadReplacement& replacement) {
  internal::StoreState& state = internal::StoreAccess::StateOf(store);
  internal::LiveRanges ranges(replacement.segments, /*with_raw=*/false);
  for (const StoredChunk& chunk : replacement.moved) {
    CAIRN_TRY(ranges.Add(chunk.key, chunk.entry));
  }
  const std::vector<internal::LiveRange*> moved = ranges.InOrder();
  ReplaceReport report;
  for (const internal::LiveRange* range : moved) report.written_bytes += range->extent.length_bytes;
  for (const StoredChunk& chunk : replacement.rewritten) {
    report.written_bytes += chunk.entry.extents.payload.length_bytes();
  }
  if (replacement.dry_run || report.written_bytes == 0) return report;

  CAIRN_TRY_ASSIGN(const auto turn, internal::TakeCompactTurn(state));
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  size_t next = 0;
  CompactOptions options;
  options.decode = [&](const auto&, std::string_view, const ChunkExtents&,
                       std::span<std::byte> bytes) -> Result<void> {
    CAIRN_TRY_ASSIGN(const std::vector<std::byte> found, replacement.bytes_of(next));
    if (found.size() != bytes.size()) {
      return Fail(ErrorCode::kInvalidArgument, "the new bytes of a chunk have another length");
    }
    std::ranges::copy(found, bytes.begin());
    return {};
  };
  Throttle no_limit(0);
  const internal::CompactContext context{.state = state,
                                         .options = options,
                                         .throttle = no_limit,
                                         .progress = replacement.progress,
                                         .read_pages = replacement.read};
  const std::string name =
      internal::CompactionName(state.session, internal::NewObjectId(state.epoch).id);
  internal::PayloadMover mover(context, snapshot, name);
  CAIRN_TRY(mover.Move(moved));
  for (; next < replacement.rewritten.size(); ++next) {
    const StoredChunk& chunk = replacement.rewritten[next];
    ranges.AddSegmentsOf(chunk.entry.extents);
    internal::ChunkVersion* const version = &ranges.AddVersion(chunk.key, chunk.entry);
    CAIRN_TRY(mover.Rewrite({&version, 1}));
  }
  CAIRN_TRY_ASSIGN(report.rewritten_steps, CommitMoves(state, ranges, mover));
  return report;
}

Result<bool> RecordStatistics(Store& store, const StepInfo& step,
                              const StatisticsOfChunks& statistics) {
  internal::StoreState& state = internal::StoreAccess::StateOf(store);
  CAIRN_TRY_ASSIGN(const auto turn, internal::TakeCompactTurn(state));
  const internal::ChunkChanges changes{
      .may_affect = [&](const internal::StepEntry& entry) -> Result<bool> {
        return entry.info.step == step.step && entry.info.generation == step.generation;
      },
      .change = [&](std::string_view key, std::span<const std::byte> record)
          -> Result<std::optional<std::vector<std::byte>>> {
        const auto found = statistics.find(std::string(key));
        if (found == statistics.end()) return std::nullopt;
        CAIRN_TRY_ASSIGN(ChunkEntry entry, internal::DecodeChunk(record));
        if (entry.statistics) return std::nullopt;
        entry.statistics = found->second;
        return internal::EncodeChunk(entry);
      },
      .replaces = {}};
  CAIRN_TRY_ASSIGN(const uint64_t written, internal::CommitChunkChanges(state, changes));
  return written > 0;
}

}  // namespace cairn::kv
