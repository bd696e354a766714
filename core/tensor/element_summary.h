#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Statistics of a part of the elements of a chunk, and of several parts together.

#include <cstdint>
#include <limits>

#include "kv/base/chunk_entry.h"

namespace cairn::core {

/// What counts as a value is described in core/tensor/element_statistics.h.
struct ElementSummary {
  double min = std::numeric_limits<double>::infinity();   // of the values that are not NaN
  double max = -std::numeric_limits<double>::infinity();  // of the same
  double mean = 0;                                        // of the finite values
  uint64_t finite = 0;
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;

  void Add(const ElementSummary& other);
  kv::ChunkStatistics ToStatistics() const;
};

}  // namespace cairn::core
