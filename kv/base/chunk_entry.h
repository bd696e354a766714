#pragma once
// SPDX-License-Identifier: Apache-2.0
/// What a step records of one chunk.

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/extents.h"

namespace cairn::kv {

/// Statistics of the elements of a chunk, which this layer stores and does not compute.
struct ChunkStatistics {
  /// Smallest and largest value, infinities included; NaN if every value is a NaN.
  double min = 0;
  double max = 0;
  double mean = 0;  // of the finite values; NaN if there are none
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;  // positive and negative
};

struct ChunkEntry {
  std::vector<uint64_t> sizes;  // in elements
  ChunkExtents extents;
  Digest digest;
  uint64_t since_step = 0;                    // the latest step that wrote any of the bytes
  std::optional<ChunkStatistics> statistics;  // empty: not computed
};

}  // namespace cairn::kv
