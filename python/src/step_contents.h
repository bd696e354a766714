#pragma once
/// What a step holds, as the Python side sees it: leaf by leaf, with no object made that is not
/// asked for.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/step/contents.h"
#include "kv/step_info.h"


namespace cairn::python {

namespace nb = nanobind;

/// A step, or the part of it that patterns selected. Leaves are numbered in tree order.
///
/// Threads: immutable; members that return Python objects need the GIL.
class StepContents {
 public:
  /// Raises Corrupt if the tree has leaves that have no record.
  explicit StepContents(core::Contents contents);

  const kv::StepInfo& step() const { return contents_.step; }
  size_t page_digest_count() const { return leaves_.size(); }
  const std::string& fqn(size_t leaf) const { return leaves_[leaf].fqn; }
  core::NodeKind kind(size_t leaf) const { return contents_.tree.nodes[leaves_[leaf].node].kind; }
  /// Requires a leaf whose kind is that of a tensor.
  const core::TensorInfo& tensor(size_t leaf) const { return contents_.tensors[slots_[leaf]]; }
  /// In key order; owners of shared memory that are no leaves included.
  const std::vector<core::TensorInfo>& tensors() const { return contents_.tensors; }

  /// (FQN, node kind, TensorInfo or plain value).
  nb::tuple ToPyLeaf(size_t leaf) const;
  nb::list ToPyFqns() const;
  /// The TensorInfo of a leaf or hidden owner, or None.
  nb::object FindTensor(nb::str fqn) const;
  /// The nested state with `leaves`, one a leaf, in its places.
  nb::object Build(nb::list leaves) const;

 private:
  nb::object MakeContainer(uint32_t node,
                           std::vector<std::pair<uint32_t, nb::object>>& built) const;

  core::Contents contents_;
  std::vector<core::Leaf> leaves_;
  std::vector<uint32_t> slots_;  // by leaf: index in contents_.tensors or contents_.values
};

/// True if the bytes of both lie in the same place of the step: they are one and the same tensor.
bool IsSamePlace(const core::TensorInfo& a, const core::TensorInfo& b);
/// (FQN of the owner, offset in bytes, dtype code, shape, strides): equal for the same place.
nb::tuple ToPyPlace(const core::TensorInfo& info);
/// The tensor whose bytes these are: itself, or the one that it is an alias of.
const std::string& OwnerOf(const core::TensorInfo& info);

}  // namespace cairn::python
