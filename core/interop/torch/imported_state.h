#pragma once
/// States that are read from other programs' checkpoint files, to be saved as a step.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/progress.h"
#include "core/state_dict/state_dict.h"
#include "kv/mapping.h"

namespace cairn::core {

struct ImportOptions {
  /// Values that no store can hold (objects of classes other than plain ones) are left out and
  /// listed; else they are an error that names the key.
  bool skip_unknown = false;
  Progress progress;  // of checking the files' own checksums
};

/// A state whose tensors lie in mapped files.
///
/// Ownership: owns the mappings, which views in `state` point into. Threads: as StateDict. The
/// files must not be truncated while it is used.
struct ImportedState {
  struct LeftOut {
    std::string key;
    std::string what;
  };
  StateDict state;
  std::vector<std::shared_ptr<const kv::Mapping>> files;  // shared by copies of this object
  std::vector<LeftOut> left_out;    // what ImportOptions::skip_unknown asked for
  std::vector<LeftOut> attributes;  // Python attributes of tensors and dicts: never kept
  std::set<std::string> unchecked;  // files that were written without checksums

  /// Lets go of the memory that reading the files has taken so far, so that a save of more bytes
  /// than there is memory leaves room for others. Cheap enough for a progress callback.
  void ReleasePages() const;
};

/// One dict of what the roots of `states` hold, in their order, or the state itself if there is but
/// one; below `prefix`, if it is not empty, as its only key. The states returned borrow the same
/// tensors. kInvalidArgument: several states, and one that is no dict.
Result<StateDict> JoinStates(std::vector<StateDict> states, std::string_view prefix);

}  // namespace cairn::core
