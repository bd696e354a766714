#pragma once
/// State dicts that are written to.

#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// A state dict whose memory is written to. TensorView only promises to read; whoever makes a
/// StateTarget vouches that the memory behind every view and part of `state` may be written, and
/// that elements of one tensor do not overlap.
///
/// Ownership: borrows `state`, which outlives it. Threads: as the state's own.
class StateTarget {
 public:
  explicit StateTarget(StateDict& state) : state_(&state) {}

  StateDict& state() const { return *state_; }
  /// Requires a view of `state`, or of a part of one.
  TensorTarget Writable(const TensorView& view) const {
    return {view.dtype, view.shape, view.strides, const_cast<std::byte*>(view.data),
            view.device};
  }

 private:
  StateDict* state_;
};

}  // namespace cairn::core
