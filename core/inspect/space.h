#pragma once
// SPDX-License-Identifier: Apache-2.0
/// How much space the tensors and long values of a step take, by parts of the state.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/state_dict/key_pattern.h"
#include "kv/base/error.h"
#include "kv/store.h"

namespace cairn::core {

/// The keys that begin with the same path elements.
struct SpaceUse {
  std::string prefix;    // FQN, or its first elements
  uint64_t tensors = 0;  // tensors that have chunks
  uint64_t chunks = 0;
  uint64_t delta_chunks = 0;  // chunks that have deltas
  uint64_t compressed_chunks = 0;
  uint64_t logical_bytes = 0;  // payload
  uint64_t stored_bytes = 0;   // in segments: extents and deltas
  uint64_t new_bytes = 0;      // part of stored_bytes that is in segments of this step
};

/// Returns how much space the keys of a step that `patterns` select take: one element per prefix of
/// at most `depth` path elements, in key order; one per key if `depth` is 0. Reads no payload.
/// `progress` receives numbers of chunks. kNotFound: there is no such step. kDataLoss: a record is
/// damaged. kCancelled: `progress` asked to stop.
Result<std::vector<SpaceUse>> MeasureSpace(const kv::Store& store, uint64_t step,
                                           const KeyPatterns& patterns = {}, uint64_t depth = 2,
                                           const Progress& progress = {});

}  // namespace cairn::core
