#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The differences between two steps, and the versions of a key.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"

namespace cairn::core {

struct KeyChange {
  enum class Kind { kAdded, kRemoved, kChanged } kind;
  std::string fqn;
  bool is_tensor = true;
  uint64_t changed_bytes = 0;  // bytes of differing chunks or pages; all if added or removed
  uint64_t total_bytes = 0;
  std::string detail;  // "dtype float32 -> bfloat16", "shape ...", or old -> new value
};

struct Diff {
  std::vector<KeyChange> changes;  // key order
  uint64_t unchanged_keys = 0;
};

/// A step at which a key differs from the step before.
struct KeyVersion {
  kv::StepInfo step;
  KeyChange change;  // from the step before; kAdded at the first step that has the key
};

/// Called with one version after another. An error ends the search.
using VersionVisitor = std::function<Result<void>(const KeyVersion&)>;

}  // namespace cairn::core
