#pragma once
/// The contents of a step for the Python side, leaf by leaf. Python objects are created only when
/// they are requested.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "core/inspect/stored_statistics.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "python/src/convert.h"
#include "python/src/flatten.h"

namespace cairn::python {

namespace nb = nanobind;

/// A step, or the part of it that patterns select. Leaves are numbered in tree order.
///
/// Threads: immutable; members that return Python objects require the GIL.
class StepContents {
 public:
  /// Raises Corrupt if a leaf of the tree has no record. `store` (Store) reads long values.
  StepContents(core::Contents contents, nb::object store);
  /// The contents of a step after a conversion. `state` describes them by tensors without memory.
  /// `shared` has (FQN of the owner, offset in bytes, strides) by FQN of the tensors that share
  /// bytes; an owner that is not in `state` is hidden in `stored`. `long_values` has the LongValue
  /// of each value that is not read yet, by its new FQN. `conversion` loads the tensors.
  StepContents(const StepContents& stored, const Batch& state, nb::dict shared,
               nb::dict long_values, nb::object conversion);

  const core::Contents& all() const { return contents_; }
  /// The Python object that loads converted contents; None: they are as they are stored.
  nb::object conversion() const { return conversion_; }
  bool is_converted() const { return !conversion_.is_none(); }
  const kv::StepInfo& step() const { return contents_.step; }
  size_t leaf_count() const { return leaves_.size(); }
  const std::string& fqn(size_t leaf) const {
    const uint32_t slot = leaves_[leaf].slot;
    return core::IsTensor(kind(leaf)) ? contents_.tensors[slot].fqn : contents_.values[slot].fqn;
  }
  core::NodeKind kind(size_t leaf) const { return contents_.tree.nodes[leaves_[leaf].node].kind; }
  /// Requires a leaf whose kind is a tensor.
  const core::TensorInfo& tensor(size_t leaf) const {
    return contents_.tensors[leaves_[leaf].slot];
  }
  /// Returns all tensors in key order, including owners of shared memory that are not leaves.
  const std::vector<core::TensorInfo>& tensors() const { return contents_.tensors; }

  /// Returns (FQN, node kind, TensorInfo or plain value or LongValue). Raises IndexError.
  nb::tuple ToPyLeaf(size_t leaf) const;
  nb::list ToPyFqns() const {
    const auto fqn_of = [this](size_t leaf) -> const std::string& { return fqn(leaf); };
    return ToPyTexts(std::views::iota(size_t{0}, leaf_count()) | std::views::transform(fqn_of));
  }
  /// Returns the leaves that are the tensors with these indices in tensors(), in their order.
  nb::list LeavesOf(const std::vector<size_t>& tensors) const;
  /// Returns the TensorInfo of a leaf or of a hidden owner, or None.
  nb::object FindTensor(nb::str fqn) const;
  /// Returns the core::StoredStatistics of each tensor that has them, by FQN. Requires one element
  /// of `statistics` per element of tensors().
  nb::dict ToPyStatistics(
      const std::vector<std::optional<core::StoredStatistics>>& statistics) const;
  /// Returns the nested state with one element of `leaves` for each leaf. `rebuild` returns the
  /// object that takes the place of the dict of a tensor subclass, from the dict and its FQN.
  /// Raises Invalid for another number of elements.
  nb::object Build(nb::list leaves, nb::handle rebuild) const;
  /// Whether a leaf describes a tensor subclass, of which other leaves are the inner tensors.
  bool has_subclasses() const;

 private:
  nb::object MakeContainer(uint32_t node, std::vector<std::pair<uint32_t, nb::object>>& built,
                           nb::handle rebuild) const;
  bool DescribesSubclass(uint32_t node) const;
  const std::string& FqnOfLeafAt(uint32_t node) const;

  struct Leaf {
    uint32_t node;
    uint32_t slot;  // index in contents_.tensors or contents_.values
  };

  core::Contents contents_;
  nb::object store_;
  nb::dict long_values_;  // of converted contents
  nb::object conversion_ = nb::none();
  std::vector<Leaf> leaves_;
};

/// Returns true if both refer to the same bytes of the step in the same way, so that they are the
/// same tensor.
bool IsSamePlace(const core::TensorInfo& a, const core::TensorInfo& b);
/// Returns (FQN of the owner, offset in bytes, dtype code, shape, strides), which is equal exactly
/// if IsSamePlace is true.
nb::tuple ToPyPlace(const core::TensorInfo& info);
/// Returns the FQN of the tensor that owns the bytes: this tensor, or the one it is an alias of.
const std::string& OwnerOf(const core::TensorInfo& info);

}  // namespace cairn::python
