#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Changes of the keys of a step, which CheckpointStore::Edit applies without moving payload.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/progress.h"
#include "core/step/application_records.h"

namespace cairn::core {

/// Takes keys of another step of the same store.
struct Graft {
  uint64_t step = 0;
  std::vector<std::string> patterns;  // as KeyPatterns::Parse; empty: all keys
  std::string under;                  // put the keys below this one; empty: keep their names
};

/// The changes are applied in this order: drop, rename, graft.
struct StepEdit {
  /// Patterns (KeyPatterns::Parse) of the keys that the new step does not have. Containers that
  /// lose all their keys are removed.
  std::vector<std::string> drop;
  /// Pairs of old and new names. The old one is a key, or a prefix of keys that ends before a "."
  /// ("model" for "model.wte"). All are renamed at once, so that two keys can be swapped; of
  /// several names that match a key, the longest counts.
  std::vector<std::pair<std::string, std::string>> rename;
  /// A key of the other step replaces an equal one.
  std::optional<Graft> graft;
  /// Changes of the records of applications, which the new step has from the source.
  ApplicationRecordChanges records = {};
  bool overwrite = false;  // replace the new step if it exists
  Progress progress;       // in records of chunks and tensors, not in bytes

  bool keeps_all_keys() const { return drop.empty() && rename.empty() && !graft; }
};

}  // namespace cairn::core
