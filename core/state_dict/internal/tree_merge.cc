// Merges trees: unfolds both, joins them node by node, and writes the nodes in preorder.

#include "core/state_dict/internal/tree_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace cairn::core::internal {

struct TreeMerge::Branch {
  Node node;
  std::vector<std::unique_ptr<Branch>> children;
  std::map<std::pair<KeyKind, std::string>, Branch*> by_key;

  Branch* Add(std::unique_ptr<Branch> child) {
    Branch* const added = child.get();
    by_key.emplace(std::pair(added->node.key_kind, added->node.key), added);
    children.push_back(std::move(child));
    return added;
  }
};

Result<std::unique_ptr<TreeMerge::Branch>> TreeMerge::Unfold(const StateTree& tree, size_t& at,
                                                             size_t depth) {
  if (at == tree.nodes.size() || depth > kMaxTreeLevels) {
    return Fail(ErrorCode::kDataLoss, "a state's tree is damaged: its child counts do not add up");
  }
  auto branch = std::make_unique<Branch>();
  branch->node = tree.nodes[at++];
  for (uint32_t i = 0; i < branch->node.child_count; ++i) {
    CAIRN_TRY_ASSIGN(auto child, Unfold(tree, at, depth + 1));
    branch->Add(std::move(child));
  }
  return branch;
}

Result<void> TreeMerge::Join(Branch& into, std::unique_ptr<Branch> other, const std::string& path) {
  if (into.node.kind != other->node.kind) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = fmt::format("it is {} on one rank and {} on another",
                                             KindName(into.node.kind), KindName(other->node.kind)),
                      .key = path});
  }
  if (into.node.form != other->node.form) {
    return Fail(
        Error{.code = ErrorCode::kInvalidArgument,
              .message = fmt::format("another rank or portion names it '{}', because not all "
                                     "of them hold the keys that this key is escaped for; "
                                     "rename one of these keys",
                                     NameOf(into.node)),
              .key = path});
  }
  for (auto& child : other->children) {
    std::string below = path;
    if (into.node.key_kind != KeyKind::kRoot) below += '.';
    AppendName(child->node, below);
    const auto found = into.by_key.find({child->node.key_kind, child->node.key});
    if (found == into.by_key.end()) {
      into.Add(std::move(child));
      continue;
    }
    CAIRN_TRY(Join(*found->second, std::move(child), below));
  }
  return {};
}

// The children of a list must be its elements from 0 on, without gaps.
void TreeMerge::MakeDictUnlessComplete(Branch& list) {
  std::ranges::stable_sort(list.children, [](const auto& a, const auto& b) {
    const std::string& x = a->node.key;
    const std::string& y = b->node.key;
    return std::pair(x.size(), std::string_view(x)) < std::pair(y.size(), std::string_view(y));
  });
  for (size_t i = 0; i < list.children.size(); ++i) {
    if (list.children[i]->node.key == std::to_string(i)) continue;
    list.node.kind = NodeKind::kDict;
    for (auto& child : list.children) child->node.key_kind = KeyKind::kInt;
    return;
  }
}

void TreeMerge::Fold(Branch& branch, StateTree& tree) {
  if (IsContainer(branch.node.kind) && !IsMapping(branch.node.kind)) MakeDictUnlessComplete(branch);
  branch.node.child_count = static_cast<uint32_t>(branch.children.size());
  tree.nodes.push_back(branch.node);
  for (auto& child : branch.children) Fold(*child, tree);
}

TreeMerge::TreeMerge() = default;
TreeMerge::~TreeMerge() = default;

Result<void> TreeMerge::Add(const StateTree& tree) {
  size_t at = 0;
  CAIRN_TRY_ASSIGN(auto added, Unfold(tree, at, 0));
  if (root_ == nullptr) {
    root_ = std::move(added);
    return {};
  }
  return Join(*root_, std::move(added), "");
}

StateTree TreeMerge::Take() {
  CAIRN_CHECK(root_ != nullptr);
  StateTree tree;
  Fold(*root_, tree);
  return tree;
}

}  // namespace cairn::core::internal
