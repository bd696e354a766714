// The records are written again as a compaction writes them.

#include "kv/record_statistics.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/maintain/internal/step_rewriter.h"
#include "kv/root/internal/kv_records.h"
#include "kv/store.h"

namespace cairn::kv {

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
