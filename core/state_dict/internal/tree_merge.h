#pragma once
/// Merges the trees of all ranks, each of which may hold a part of the state.

#include <memory>
#include <string>

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Merges trees: containers with the same path become one, in which the children of trees that were
/// added earlier come first. A list becomes a dict by index if the trees together do not contain
/// all its elements from 0 on. Threads: one call at a time. Cost: linear in the nodes of all trees.
class TreeMerge {
 public:
  TreeMerge();
  ~TreeMerge();
  TreeMerge(const TreeMerge&) = delete;
  TreeMerge& operator=(const TreeMerge&) = delete;

  /// Adds a tree. kInvalidArgument, naming the path: a node has different kinds in two trees.
  /// kDataLoss: the child counts do not add up, or the tree is too deep.
  Result<void> Add(const StateTree& tree);
  /// Returns the merged tree. Requires that a tree was added; call it once, last.
  StateTree Take();

 private:
  struct Branch;
  static Result<std::unique_ptr<Branch>> Unfold(const StateTree& tree, size_t& at, size_t depth);
  static Result<void> Join(Branch& into, std::unique_ptr<Branch> other, const std::string& path);
  static void MakeDictUnlessComplete(Branch& list);
  static void Fold(Branch& branch, StateTree& tree);

  std::unique_ptr<Branch> root_;  // null until a tree is added
};

}  // namespace cairn::core::internal
