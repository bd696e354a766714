#pragma once
// SPDX-License-Identifier: Apache-2.0
/// State dicts whose tensors are written.

#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// A state dict whose tensors are written. A TensorView allows only reads. The code that creates a
/// StateTarget guarantees that the memory of every view and part of `state` is writable, and that
/// elements of one tensor do not overlap.
///
/// Ownership: borrows `state`, which outlives it. Threads: as for `state`.
class StateTarget {
 public:
  explicit StateTarget(StateDict& state) : state_(&state) {}

  StateDict& state() const { return *state_; }
  /// Returns `view` as a target. Requires a view or part of `state`, or a view inside one.
  TensorTarget Writable(const TensorView& view) const {
    return {view.dtype, view.shape, view.strides, const_cast<std::byte*>(view.data), view.device};
  }

 private:
  StateDict* state_;
};

}  // namespace cairn::core
