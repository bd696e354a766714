#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Records that several parts of a step share, and the totals that a step's record contains.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/key.h"

namespace cairn::kv {

/// A record that several ranks have with equal contents, such as a replicated value.
struct SharedRecord {
  Column column = Column::kValues;
  std::string key;
  std::vector<std::byte> value;
};

/// A chunk that another rank has written.
struct RankChunk {
  uint32_t rank = 0;
  std::string_view fqn;
  uint64_t length_bytes = 0;
  std::span<const uint64_t> offsets;  // in elements, as many as sizes
  std::span<const uint64_t> sizes;
};

/// Receives what other ranks have contributed to a step. Everything that is passed is valid only
/// during the call.
class RankRecords {
 public:
  virtual ~RankRecords() = default;
  /// Adds a shared record that `rank` has. The shared records of a rank precede its chunks.
  virtual Result<void> AddShared(uint32_t rank, Column column, std::string_view key,
                                 std::span<const std::byte> value) = 0;
  /// Adds a chunk, whose record is verified.
  virtual Result<void> AddChunk(const RankChunk& chunk) = 0;
};

/// The caller's description of a step, or of one rank's part of it, when it commits the step.
struct StepSummary {
  std::optional<uint64_t> base_step;
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  uint64_t logical_bytes = 0;
};

/// Returns the kConflict of a save of `step` whose base was deleted or replaced during the save.
inline Error BaseReplacedError(uint64_t step) {
  return Error{.code = ErrorCode::kConflict,
               .message =
                   "the base step, to which this save refers, was deleted or replaced during "
                   "the save; save again",
               .step = step};
}

}  // namespace cairn::kv
