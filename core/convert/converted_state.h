#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A state in memory as rules convert it, to be saved as a step.

#include <memory>

#include "core/convert/conversion_rules.h"
#include "core/convert/converted_keys.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// Converts `state`, whose tensors are in host memory and not sharded.
///
/// Tensors that are only renamed remain views of their memory. All others are computed into an
/// unnamed temporary file, which `scratch` keeps mapped and which must outlive the use of `state`:
/// its pages need not remain in memory.
struct ConvertedState {
  StateDict state;
  std::shared_ptr<void> scratch;  // shared with whoever saves the state

  /// Errors: those of ConvertKeys; kInvalidArgument for names that do not form a tree, or a sharded
  /// tensor; kUnavailable, kResourceExhausted: the temporary file cannot be written.
  static Result<ConvertedState> Make(const StateDict& state, const ConversionRules& rules,
                                     const KeyCasts& casts = {});
};

}  // namespace cairn::core
