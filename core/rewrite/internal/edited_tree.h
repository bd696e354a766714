#pragma once
/// The tree of a step while its keys are changed, and where each leaf is from.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/rewrite/step_edit.h"
#include "core/state_dict/state_dict.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// A leaf of the new step.
struct EditedLeaf {
  std::string fqn;       // in the new step
  std::string from_fqn;  // in its source
  bool grafted = false;  // its source is the step of the graft
  bool is_tensor = false;
};

/// Threads: one call at a time. After an error, only the destructor may be called.
class EditedTree {
 public:
  /// kInvalidArgument: the root is a leaf. kDataLoss: the tree is damaged.
  static Result<EditedTree> Make(const StateTree& tree);
  EditedTree(EditedTree&&) noexcept;
  EditedTree& operator=(EditedTree&&) noexcept;
  ~EditedTree();

  // kNotFound: a pattern or name selects no leaf. kInvalidArgument: the result cannot be expressed;
  // names the key.
  Result<void> Drop(const std::vector<std::string>& patterns);
  Result<void> Rename(std::span<const std::pair<std::string, std::string>> names);
  Result<void> AddGraft(const StateTree& other, const Graft& graft);

  struct Finished {
    StateTree tree;
    std::vector<EditedLeaf> leaves;  // in tree order
  };
  /// Call it last. kInvalidArgument, naming the key: two keys are equal, or a list has gaps.
  Result<Finished> Finish();

 private:
  struct Branch;
  struct Moved;
  explicit EditedTree(std::unique_ptr<Branch> root);
  Result<Branch*> Descend(std::string& rest) const;
  Result<Branch*> MakeDict(const std::string& fqn);
  Result<void> Attach(Moved moved);

  std::unique_ptr<Branch> root_;
};

}  // namespace cairn::core::internal
