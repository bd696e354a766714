#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Annotations of steps by users: metrics and notes, which belong to the step, and tags, which name
/// steps and can be moved.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::kv {

/// A number that was measured when the step was saved, such as a loss.
struct Metric {
  std::string name;
  double value = 0;  // any, kept bit by bit
};

inline constexpr size_t kMaxMetrics = 64;
inline constexpr size_t kMaxTags = 1024;  // tags per store
inline constexpr size_t kMaxNameLength = 64;
inline constexpr size_t kMaxNoteBytes = 4096;

/// The steps that have tags, by tag. A tag names one step.
using Tags = std::map<std::string, uint64_t>;
/// Changes of tags: the step that a tag names from now on, or nothing to remove the tag.
using TagChanges = std::map<std::string, std::optional<uint64_t>>;

/// Returns whether `name` is valid for a tag: 1 to 64 letters, digits, ".", "_" or "-", and not
/// only digits, so that STORE@TAG cannot be mistaken for STORE@STEP.
bool IsTagName(std::string_view name);
/// kInvalidArgument: a name is not valid for a tag, or there are too many.
Result<void> CheckTags(const TagChanges& changes);
/// kInvalidArgument: there are too many metrics, a name is used twice, or is not 1 to 64 letters,
/// digits, ".", "_", "-" or "/"; the note is too long; a tag has an impossible name.
Result<void> CheckAnnotations(const std::vector<Metric>& metrics, const std::string& note,
                              const std::vector<std::string>& tags);

}  // namespace cairn::kv
