#pragma once
/// Checking chunks where they lie in mapped segments.

#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "kv/mapping.h"

namespace cairn::core::internal {

/// All pointers are borrowed; the chunk lies inside the mapping, in one extent.
struct MappedChunk {
  const std::string* fqn = nullptr;
  const ChunkInfo* chunk = nullptr;
  const kv::Mapping* mapping = nullptr;  // of the chunk's segment, the same for all of its chunks

  const kv::Extent& extent() const { return chunk->extents.front(); }
};

/// Checks all chunks against their digests, in file order, on all cores, the disk kept busy ahead
/// of them. kDataLoss names key, file and offset of the first that does not match or cannot be
/// read. kCancelled: `progress` asked to stop.
Result<void> CheckMapped(const StepView& view, std::vector<MappedChunk> chunks,
                         const Progress& progress);

}  // namespace cairn::core::internal
