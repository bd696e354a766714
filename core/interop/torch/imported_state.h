#pragma once
/// A state that was read from checkpoint files of other programs, to be saved as a step.

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
  /// If true, values that no store can hold (objects of classes other than plain ones) are left out
  /// and listed; otherwise they are an error that names the key.
  bool skip_unknown = false;
  Progress progress;  // of verifying the checksums of the files
};

/// A state whose tensors are in mapped files.
///
/// Ownership: shares the mappings, which views in `state` point into, with its copies. Threads: the
/// rules of StateDict apply. The files must not be truncated while it is in use.
struct ImportedState {
  struct LeftOut {
    std::string key;
    std::string what;  // for people: what was left out, and why
  };
  StateDict state;
  std::vector<std::shared_ptr<const kv::Mapping>> files;
  std::vector<LeftOut> left_out;    // values that ImportOptions::skip_unknown left out
  std::vector<LeftOut> attributes;  // Python attributes of tensors and dicts, which are never kept
  std::set<std::string> unchecked;  // files that were written without checksums

  /// Releases the memory that reading the files has taken so far, so that a save of more bytes than
  /// there is memory leaves room for other processes. Cheap enough for a progress callback.
  void ReleasePages() const;
};

/// Joins the dicts `states` into one with all of their items, in order. A single state is returned
/// as it is, and need not be a dict. If `prefix` is not empty, the result is a dict with `prefix`
/// as its only key. The result borrows the same tensors. kInvalidArgument: there are several
/// states, and one of them is not a dict.
Result<StateDict> JoinStates(std::vector<StateDict> states, std::string_view prefix);

}  // namespace cairn::core
