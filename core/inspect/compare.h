#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The differences between two steps, and the versions of a key.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/state_dict/key_pattern.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/store.h"

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
  kv::StepInfo before;  // the step before, unless `step` is the first one
  KeyChange change;     // from the step before; kAdded at the first step that has the key
};

/// Called with one version after another. An error ends the search.
using VersionVisitor = std::function<Result<void>(const KeyVersion&)>;

/// Returns the differences between two steps, for the keys that `patterns` select. Compares
/// digests, and reads payload only where the two steps cut a tensor into different chunks.
/// kNotFound: there is no such step.
Result<Diff> CompareSteps(const kv::Store& store, uint64_t step_a, uint64_t step_b,
                          const KeyPatterns& patterns = {});

/// Calls `visit` with the steps at which a key, or the bytes of its tensor, differ from the step
/// before, in the order of `steps`; if there are none, all steps of the store, in ascending order.
/// Compares digests, as CompareSteps does. kNotFound: no step has such a key, or one of `steps` was
/// deleted. Cost: a few lookups per step.
Result<void> FindVersions(const kv::Store& store, const std::string& fqn,
                          const VersionVisitor& visit, std::span<const kv::StepInfo> steps = {});

}  // namespace cairn::core
