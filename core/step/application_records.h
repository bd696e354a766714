#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Records of applications: bytes that a step has under names, in addition to its state.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/step_writer.h"

namespace cairn::core {

/// The records to be stored, by name.
using ApplicationRecords = std::map<std::string, std::vector<std::byte>>;
/// Changes of records: the new bytes, or nothing to remove a record.
using ApplicationRecordChanges = std::map<std::string, std::optional<std::vector<std::byte>>>;

inline constexpr size_t kMaxApplicationNameBytes = 255;
inline constexpr uint64_t kMaxApplicationRecordBytes = 16 << 20;

/// kInvalidArgument: `name` is not UTF-8 of 1 to kMaxApplicationNameBytes bytes without NUL, or
/// `data` is longer than kMaxApplicationRecordBytes.
Result<void> CheckApplicationRecord(std::string_view name, std::span<const std::byte> data);

namespace internal {

/// Returns the bytes of a record. Errors contain `name`. kDataLoss: `record` is not an
/// ApplicationRecord. kUnimplemented: a newer version wrote it.
Result<std::vector<std::byte>> DecodeApplicationRecord(std::string_view name,
                                                       std::span<const std::byte> record);

/// Adds a record to a step. kInvalidArgument: CheckApplicationRecord refuses it.
Result<void> AddApplicationRecord(const std::string& name, std::span<const std::byte> data,
                                  kv::StepWriter& writer);

/// Adds the records of `step` after `changes` to another step. kInvalidArgument:
/// CheckApplicationRecord refuses one. kNotFound: there is no record that is to be removed.
Result<void> MoveApplicationRecords(const kv::Snapshot& snapshot, const kv::StepInfo& step,
                                    const ApplicationRecordChanges& changes,
                                    kv::StepWriter& writer);

}  // namespace internal
}  // namespace cairn::core
