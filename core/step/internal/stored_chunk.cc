#include "core/step/internal/stored_chunk.h"

#include <cstdint>
#include <string>
#include <vector>

#include "core/step/contents.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "kv/base/key.h"
#include "kv/base/read_range.h"

namespace cairn::core::internal {

Result<void> ReadStoredChunk(const std::shared_ptr<const kv::Snapshot>& snapshot,
                             std::string_view key, const kv::ChunkExtents& extents,
                             std::span<std::byte> bytes) {
  CAIRN_TRY_ASSIGN(const kv::ParsedKey parsed, kv::ParseKey(key));
  const std::string fqn(parsed.fqn);
  ChunkInfo chunk;
  chunk.extents = extents.payload;
  chunk.deltas = extents.deltas;
  std::vector<kv::ReadRange> ranges;
  uint64_t at = 0;
  for (const kv::Extent& extent : extents.payload) {
    ranges.push_back({.segment_id = extent.segment_id,
                      .offset_bytes = extent.offset_bytes,
                      .target = bytes.subspan(at, extent.length_bytes)});
    at += extent.length_bytes;
  }
  CAIRN_TRY(snapshot->Read(ranges, 1,
                           [](size_t, std::span<const std::byte>) -> Result<void> { return {}; }));
  const StepView view{.snapshot = snapshot, .step = {}, .directory = {}};
  DeltaChain chain;
  DeltaRead read{.fqn = &fqn, .chunk = &chunk, .first = 0, .chain = &chain};
  CAIRN_TRY(ReadDeltas(view, {&read, 1}));
  return chain.ApplyAll(0, bytes);
}

}  // namespace cairn::core::internal
