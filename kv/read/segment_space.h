#pragma once
// SPDX-License-Identifier: Apache-2.0
/// How much of each segment the steps of a store use.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"

namespace cairn::kv {

struct SegmentSpace {
  SegmentInfo segment;
  uint64_t live_bytes = 0;    // bytes that steps use, each byte once
  uint64_t shared_bytes = 0;  // the part of live_bytes that several steps use

  /// Payload that no step uses.
  uint64_t dead_bytes() const {
    return segment.payload_bytes - std::min(segment.payload_bytes, live_bytes);
  }
  /// Everything except payload: the header, page digests, the footer and gaps.
  uint64_t overhead_bytes() const {
    const uint64_t payload_bytes = live_bytes + dead_bytes();
    return segment.file_bytes - std::min(segment.file_bytes, payload_bytes);
  }
};

/// Returns all segments that steps use, ascending by id. Exact. Cost: reads the chunk records of
/// all steps. Memory: about 50 bytes per chunk that is stored. `progress`, if it is not empty,
/// receives the number of records that were read and the number of all records. kDataLoss: a record
/// is damaged.
Result<std::vector<SegmentSpace>> MeasureSegments(
    const Snapshot& snapshot, const std::function<void(uint64_t, uint64_t)>& progress = {});

}  // namespace cairn::kv
