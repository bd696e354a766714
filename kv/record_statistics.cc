// The records are written again as a compaction writes them.

#include "kv/record_statistics.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "kv/maintain/internal/step_rewriter.h"
#include "kv/root/internal/kv_records.h"
#include "kv/store.h"

namespace cairn::kv {

Result<uint64_t> RecordStatistics(Store& store, const std::set<uint64_t>& steps,
                                  const StatisticsOfChunks& statistics) {
  internal::StoreState& state = internal::StoreAccess::StateOf(store);
  CAIRN_TRY_ASSIGN(const auto turn, internal::TakeCompactTurn(state));
  const internal::ChunkChanges changes{
      .may_affect = [&](const internal::StepEntry& entry) -> Result<bool> {
        return steps.contains(entry.info.step);
      },
      .change = [&](std::string_view key, std::span<const std::byte> record)
          -> Result<std::optional<std::vector<std::byte>>> {
        const auto found = statistics.find(std::string(key));
        if (found == statistics.end()) return std::nullopt;
        CAIRN_TRY_ASSIGN(ChunkEntry entry, internal::DecodeChunk(record));
        const auto same = std::ranges::find(found->second, entry.digest,
                                            [](const auto& one) { return one.first; });
        if (entry.statistics || same == found->second.end()) return std::nullopt;
        entry.statistics = same->second;
        return internal::EncodeChunk(entry);
      },
      .replaces = {}};
  return internal::CommitChunkChanges(state, changes);
}

}  // namespace cairn::kv
