#pragma once
/// Records that several parts of a step share, and the totals that a step's record contains.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"
#include "kv/key.h"

namespace cairn::kv {

/// A record that several ranks have with equal contents, such as a replicated value.
struct SharedRecord {
  Column column = Column::kValues;
  std::string key;
  std::vector<std::byte> value;
};

/// Called with a record of another rank's part. The key and the value are valid only during the
/// call.
using RankRecordCallback = std::function<Result<void>(uint32_t rank, Column, std::string_view key,
                                                      std::span<const std::byte> value)>;

/// What the caller knows about a step, or about one rank's part of it, when it commits the step.
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
