#pragma once
/// Verifies chunks in mapped segments.

#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "kv/base/mapping.h"

namespace cairn::core::internal {

/// A chunk in one extent, which is inside the mapping. Borrows everything.
struct MappedChunk {
  const std::string* fqn = nullptr;
  const ChunkInfo* chunk = nullptr;
  const kv::Mapping* mapping = nullptr;  // one per segment

  const kv::Extent& extent() const { return chunk->extents.front(); }
};

/// Checks all chunks against their digests, in file order and on all cores, with read-ahead.
/// kDataLoss: a chunk does not match or cannot be read; names key, file and offset of the first.
/// kCancelled: `progress` asked to stop.
Result<void> CheckMapped(const StepView& view, std::vector<MappedChunk> chunks,
                         const Progress& progress);

}  // namespace cairn::core::internal
