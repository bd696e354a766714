#pragma once
/// What the parts of a step have in common with each other, and what a step's record counts.

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

/// A record that several ranks have with equal content, such as a value that all of them hold.
struct SharedRecord {
  Column column = Column::kValues;
  std::string key;
  std::vector<std::byte> value;
};

/// Called with a record of another rank's part; key and value are valid during the call only.
using RankRecordCallback = std::function<Result<void>(uint32_t rank, Column, std::string_view key,
                                                      std::span<const std::byte> value)>;

/// What the caller knows about a step when it commits it, or one rank's part of it.
struct StepSummary {
  std::optional<uint64_t> base_step;
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  uint64_t logical_bytes = 0;
};

}  // namespace cairn::kv
