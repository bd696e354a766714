#include "core/save/internal/stated_unchanged.h"

#include <string>
#include <string_view>
#include <vector>

#include "core/state_dict/key_pattern.h"

namespace cairn::core::internal {

Result<void> MarkStatedUnchanged(SavePlan& plan, const SaveOptions& options, uint64_t step) {
  for (PlannedShard& shard : plan.shards) {
    shard.is_stated_unchanged = false;
    shard.compared_chunk.reset();
  }
  if (options.unchanged.empty()) return {};
  CAIRN_TRY_ASSIGN(const KeyPatterns patterns, KeyPatterns::Parse(options.unchanged));
  std::vector<bool> matches(plan.tensors.size());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    matches[i] = patterns.Matches(plan.tensors[i].fqn);
  }
  for (PlannedShard& shard : plan.shards) {
    // Devices digest their tensors at the rate of their memory.
    shard.is_stated_unchanged = matches[shard.tensor] && !shard.on_device();
  }
  ChooseComparedChunk(plan, step);
  return {};
}

void ChooseComparedChunk(SavePlan& plan, uint64_t step) {
  uint64_t chunks = 0;
  for (PlannedShard& shard : plan.shards) {
    shard.compared_chunk.reset();
    if (shard.is_stated_unchanged) chunks += shard.chunk_count();
  }
  if (chunks == 0) return;
  uint64_t compared = step % chunks;
  for (PlannedShard& shard : plan.shards) {
    if (!shard.is_stated_unchanged) continue;
    if (compared < shard.chunk_count()) {
      shard.compared_chunk = shard.first_chunk + compared;
      return;
    }
    compared -= shard.chunk_count();
  }
}

Error NotUnchangedError(const std::string& fqn) {
  return {.code = ErrorCode::kInvalidArgument,
          .message =
              "the tensor differs from the base step, but `unchanged` states that it does not;"
              " nothing was saved",
          .key = fqn};
}

}  // namespace cairn::core::internal
