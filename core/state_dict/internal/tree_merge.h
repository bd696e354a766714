#pragma once
/// One tree out of those of many ranks, each of which may hold a part of the state.

#include <memory>
#include <string>

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Joins trees: containers of the same path become one, with the children of the trees that were
/// added first in front. A list of which the trees together do not hold all elements from 0 on
/// becomes a dict by index. Threads: one. Cost: linear in the nodes of all trees.
class TreeMerge {
 public:
  TreeMerge();
  ~TreeMerge();
  TreeMerge(const TreeMerge&) = delete;
  TreeMerge& operator=(const TreeMerge&) = delete;

  /// kInvalidArgument names a path that is a container in one and a leaf in the other, a tensor
  /// here and a value there, or containers of different kinds. kDataLoss: child counts do not add
  /// up.
  Result<void> Add(const StateTree& tree);
  /// The tree of all. Call once, last.
  StateTree Take();

 private:
  struct Branch;
  static Result<std::unique_ptr<Branch>> Unfold(const StateTree& tree, size_t& at, size_t depth);
  static Result<void> Join(Branch& into, std::unique_ptr<Branch> other, const std::string& path);
  static void MendList(Branch& list);
  static void Fold(Branch& branch, StateTree& tree);

  std::unique_ptr<Branch> root_;  // null until a tree is added
};

}  // namespace cairn::core::internal
