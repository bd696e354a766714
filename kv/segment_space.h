#pragma once
/// How much of each segment the steps of a store use.

#include <cstdint>
#include <vector>

#include "kv/error.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"

namespace cairn::kv {

struct SegmentSpace {
  SegmentInfo segment;
  uint64_t live_bytes = 0;    // that steps use, each byte once
  uint64_t shared_bytes = 0;  // of them, those that several steps use

  /// What no step uses, with the header, the footer and gaps.
  uint64_t dead_bytes() const {
    return segment.file_bytes > live_bytes ? segment.file_bytes - live_bytes : 0;
  }
};

/// Returns all segments that steps use, ascending by id. Exact. Cost: reads the chunk records of
/// all steps. Memory: about 50 bytes per chunk that is stored. kDataLoss: a record is damaged.
Result<std::vector<SegmentSpace>> MeasureSegments(const Snapshot& snapshot);

}  // namespace cairn::kv
