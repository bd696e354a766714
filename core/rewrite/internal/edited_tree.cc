// A tree of nodes that own their children. Each leaf remembers the FQN under which its source has
// its records; new FQNs result from the tree at the end.

#include "core/rewrite/internal/edited_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "core/state_dict/key_name.h"
#include "core/state_dict/key_pattern.h"

namespace cairn::core::internal {
namespace {

bool IsSequence(NodeKind kind) { return IsContainer(kind) && !IsMapping(kind); }

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Returns the FQN of a child of `parent`, whose FQN is `fqn`.
std::string Below(const Node& parent, const std::string& fqn, const Node& child) {
  std::string below = parent.key_kind == KeyKind::kRoot ? "" : fqn + ".";
  AppendName(child, below);
  return below;
}

bool HasSeparator(std::string_view name) { return FindSeparator(name) != std::string_view::npos; }

// True if `fqn` is `prefix` or below it.
bool IsAtOrBelow(std::string_view fqn, std::string_view prefix) {
  return fqn.starts_with(prefix) && (fqn.size() == prefix.size() || fqn[prefix.size()] == '.');
}

std::unexpected<Error> Invalid(const std::string& key, std::string message) {
  return Fail(
      Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = key});
}

std::unexpected<Error> NoSuchKey(const std::string& pattern) {
  return Fail(Error{.code = ErrorCode::kNotFound,
                    .hint = Hint::kListKeys,
                    .message = "no key of the step matches",
                    .key = pattern});
}

}  // namespace

struct EditedTree::Branch {
  Node node;
  EditedLeaf leaf;          // for a leaf
  bool had_leaves = false;  // for a container: at some time
  std::vector<std::unique_ptr<Branch>> children;
  std::optional<std::string> target;  // new FQN

  // Calls `visit(branch, fqn, parent)` for all branches below this one, parents first.
  template <typename Visit>
  Result<void> Walk(const std::string& fqn, const Visit& visit) {
    for (auto& child : children) {
      const std::string below = Below(node, fqn, child->node);
      CAIRN_TRY(visit(*child, below, *this));
      CAIRN_TRY(child->Walk(below, visit));
    }
    return {};
  }

  bool has_dotted_keys() const {
    return std::ranges::any_of(children, [](const auto& child) {
      const Node& node = child->node;
      return node.key_kind == KeyKind::kString && node.form != KeyForm::kEscaped &&
             node.key.contains('.');
    });
  }

  Branch* Add(Node child) {
    children.push_back(std::make_unique<Branch>());
    children.back()->node = std::move(child);
    return children.back().get();
  }

  // The child whose key has this name; null if there is none. Looks at the last one first.
  Branch* Find(std::string_view name) {
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      if (NameOf((*child)->node) == name) return child->get();
    }
    return nullptr;
  }

  // Gives the key this name. It remains that of an int if it can be; a list has positions.
  Result<void> SetName(std::string_view name, bool is_position) {
    CAIRN_TRY_ASSIGN(Node named, ParseName(name));
    const bool stays_int = node.key_kind == KeyKind::kInt && IsNumber(name);
    node.key_kind = is_position ? KeyKind::kIndex : stays_int ? KeyKind::kInt : named.key_kind;
    node.key = std::move(named.key);
    node.form = named.form;
    return {};
  }

  // Returns whether there is a leaf below.
  bool MarkLeaves() {
    bool found = !IsContainer(node.kind);
    for (auto& child : children) found |= child->MarkLeaves();
    had_leaves = had_leaves || found;
    return found;
  }
  // Removes the containers that have lost all leaves. Returns whether there is a leaf below.
  bool RemoveEmptied() {
    bool found = !IsContainer(node.kind);
    std::erase_if(children, [&](const auto& child) {
      const bool has_leaves = child->RemoveEmptied();
      found |= has_leaves;
      return !has_leaves && child->had_leaves;
    });
    return found;
  }

  static Result<std::unique_ptr<Branch>> Unfold(const StateTree& tree, size_t& at, size_t depth) {
    if (at == tree.nodes.size() || depth > kMaxTreeLevels) {
      return Fail(ErrorCode::kDataLoss, "a state's tree is damaged or too deep");
    }
    auto branch = std::make_unique<Branch>();
    branch->node = tree.nodes[at++];
    for (uint32_t i = 0; i < branch->node.child_count; ++i) {
      CAIRN_TRY_ASSIGN(auto child, Unfold(tree, at, depth + 1));
      branch->children.push_back(std::move(child));
    }
    return branch;
  }

  // Appends the nodes in preorder, and what the leaves are.
  Result<void> Fold(const std::string& fqn, Finished& out) {
    if (IsSequence(node.kind)) CAIRN_TRY(CheckSequence(fqn));
    std::set<std::pair<KeyKind, std::string_view>> keys;
    for (const auto& child : children) {
      if (keys.emplace(child->node.key_kind, child->node.key).second) continue;
      return Invalid(Below(node, fqn, child->node), "the new step would have this key twice");
    }
    node.child_count = static_cast<uint32_t>(children.size());
    out.tree.nodes.push_back(node);
    if (!IsContainer(node.kind)) {
      leaf.is_tensor = IsTensor(node.kind);
      out.leaves.push_back(leaf);
    }
    for (auto& child : children) CAIRN_TRY(child->Fold(Below(node, fqn, child->node), out));
    return {};
  }

  Result<void> CheckSequence(const std::string& fqn) {
    std::ranges::stable_sort(children, [](const auto& a, const auto& b) {
      return std::pair(a->node.key.size(), std::string_view(a->node.key)) <
             std::pair(b->node.key.size(), std::string_view(b->node.key));
    });
    for (size_t i = 0; i < children.size(); ++i) {
      if (children[i]->node.key == std::to_string(i)) continue;
      return Invalid(fqn + "." + std::to_string(i),
                     "the new step would have a list without this element; elements can be "
                     "removed only from the end of a list");
    }
    return {};
  }
};

struct EditedTree::Moved {
  std::unique_ptr<Branch> branch;
  std::string target;
};

EditedTree::EditedTree(std::unique_ptr<Branch> root) : root_(std::move(root)) {}
EditedTree::EditedTree(EditedTree&&) noexcept = default;
EditedTree& EditedTree::operator=(EditedTree&&) noexcept = default;
EditedTree::~EditedTree() = default;

Result<EditedTree> EditedTree::Make(const StateTree& tree) {
  CAIRN_TRY(FlattenTree(tree));
  size_t at = 0;
  CAIRN_TRY_ASSIGN(auto root, Branch::Unfold(tree, at, 0));
  if (!IsContainer(root->node.kind)) {
    return Fail(ErrorCode::kInvalidArgument, "the step is a single leaf and has no keys");
  }
  CAIRN_TRY(root->Walk("", [](Branch& branch, const std::string& fqn, Branch&) -> Result<void> {
    branch.leaf.from_fqn = fqn;
    return {};
  }));
  root->MarkLeaves();
  return EditedTree(std::move(root));
}

Result<void> EditedTree::Drop(const std::vector<std::string>& patterns) {
  CAIRN_TRY_ASSIGN(const KeyPatterns selected, KeyPatterns::Parse(patterns));
  std::vector<std::pair<std::string, KeyPatterns>> unmatched;  // a misspelt one is an error
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with('!')) continue;
    CAIRN_TRY_ASSIGN(KeyPatterns one, KeyPatterns::Parse({pattern}));
    unmatched.emplace_back(pattern, std::move(one));
  }
  if (unmatched.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "name the keys to drop, besides those to keep");
  }
  std::set<const Branch*> dropped;
  CAIRN_TRY(root_->Walk("", [&](Branch& branch, const std::string& fqn, Branch&) -> Result<void> {
    if (IsContainer(branch.node.kind)) return {};
    std::erase_if(unmatched, [&](const auto& one) { return one.second.Matches(fqn); });
    if (selected.Matches(fqn)) dropped.insert(&branch);
    return {};
  }));
  if (!unmatched.empty()) return NoSuchKey(unmatched.front().first);
  const auto remove = [&](const auto& self, Branch& branch) -> void {
    std::erase_if(branch.children,
                  [&](const auto& child) { return dropped.contains(child.get()); });
    for (auto& child : branch.children) self(self, *child);
  };
  remove(remove, *root_);
  root_->RemoveEmptied();
  return {};
}

Result<void> EditedTree::Rename(std::span<const std::pair<std::string, std::string>> names) {
  std::map<std::string, std::string> by_old;
  for (const auto& [from, to] : names) {
    if (from.empty() || to.empty()) return Invalid(from + "=" + to, "a name is empty");
    const size_t backslashes = from.size() - 1 - from.find_last_not_of('\\');
    if (backslashes % 2 == 1) return Invalid(from, "it ends with an incomplete escape");
    if (!by_old.emplace(from, to).second) return Invalid(from, "it is renamed twice");
  }
  std::set<std::string> unmatched;
  for (const auto& [from, to] : by_old) unmatched.insert(from);
  CAIRN_TRY(root_->Walk("", [&](Branch& branch, const std::string& fqn, Branch& parent) {
    const std::string parent_fqn = &parent == root_.get() ? "" : parent.leaf.from_fqn;
    size_t best = 0;
    for (const auto& [from, to] : by_old) {
      if (!IsAtOrBelow(fqn, from)) continue;
      unmatched.erase(from);
      const bool is_topmost = &parent == root_.get() || !IsAtOrBelow(parent_fqn, from);
      if (!is_topmost || from.size() < best) continue;
      best = from.size();
      branch.target = to + fqn.substr(from.size());
    }
    return Result<void>();
  }));
  if (!unmatched.empty()) return NoSuchKey(*unmatched.begin());

  // A key that stays in its container keeps its position; all others are taken out first.
  std::vector<Moved> moved;
  const auto apply = [&](const auto& self, Branch& branch, const std::string& fqn,
                         bool is_renamed) -> Result<void> {
    const bool dotted = branch.has_dotted_keys();
    const std::string prefix = &branch == root_.get() ? "" : fqn + ".";
    for (auto& child : branch.children) {
      const bool child_renamed = is_renamed || child->target.has_value();
      CAIRN_TRY(self(self, *child, Below(branch.node, fqn, child->node), child_renamed));
      if (!child->target) continue;
      std::string rest = *child->target;
      const bool stays = !is_renamed && rest.starts_with(prefix);
      if (stays) rest = rest.substr(prefix.size());
      const bool fits =
          IsSequence(branch.node.kind) ? IsNumber(rest) : dotted || !HasSeparator(rest);
      if (stays && fits && !rest.empty()) {
        CAIRN_TRY(child->SetName(rest, IsSequence(branch.node.kind)));
      } else {
        std::string target = *child->target;
        moved.push_back({.branch = std::move(child), .target = std::move(target)});
      }
    }
    std::erase(branch.children, nullptr);
    return {};
  };
  CAIRN_TRY(apply(apply, *root_, "", false));
  for (Moved& one : moved) CAIRN_TRY(Attach(std::move(one)));
  root_->RemoveEmptied();
  root_->MarkLeaves();
  return {};
}

// Returns the deepest container with whose FQN `rest` begins, and leaves in `rest` what follows.
Result<EditedTree::Branch*> EditedTree::Descend(std::string& rest) const {
  Branch* at = root_.get();
  const std::string target = rest;
  for (bool descended = true; descended;) {
    descended = false;
    std::vector<size_t> dots;
    for (size_t dot = FindSeparator(rest); dot != std::string::npos;
         dot = FindSeparator(rest, dot + 1)) {
      dots.push_back(dot);
    }
    for (; !dots.empty() && !descended; dots.pop_back()) {
      const size_t dot = dots.back();
      Branch* const child = at->Find(rest.substr(0, dot));
      if (child == nullptr) continue;
      if (!IsContainer(child->node.kind)) {
        return Invalid(target, fmt::format("'{}' is a leaf, not a dict", child->node.key));
      }
      at = child;
      rest = rest.substr(dot + 1);
      descended = true;
    }
  }
  return at;
}

// Puts a branch below the deepest container on the path of its target. Missing containers are
// dicts, except in a container that has keys with dots: there the rest of the path is one key.
Result<void> EditedTree::Attach(Moved moved) {
  std::string rest = moved.target;
  CAIRN_TRY_ASSIGN(Branch * at, Descend(rest));
  while (!at->has_dotted_keys() && HasSeparator(rest) && !IsSequence(at->node.kind)) {
    const size_t dot = FindSeparator(rest);
    CAIRN_TRY_ASSIGN(Node node, ParseName(rest.substr(0, dot)));
    at = at->Add(std::move(node));
    rest = rest.substr(dot + 1);
  }
  if (at->Find(rest) != nullptr) return Invalid(moved.target, "the step has this key already");
  if (IsSequence(at->node.kind) && !IsNumber(rest)) {
    return Invalid(moved.target, "a list has numbers as keys");
  }
  CAIRN_TRY(moved.branch->SetName(rest, IsSequence(at->node.kind)));
  at->children.push_back(std::move(moved.branch));
  return {};
}

// Returns the container with this FQN, which is created if it does not exist; the root for "".
Result<EditedTree::Branch*> EditedTree::MakeDict(const std::string& fqn) {
  std::string rest = fqn.empty() ? "" : fqn + ".";
  CAIRN_TRY_ASSIGN(Branch * at, Descend(rest));
  for (size_t dot = FindSeparator(rest); dot != std::string::npos; dot = FindSeparator(rest)) {
    CAIRN_TRY_ASSIGN(Node node, ParseName(rest.substr(0, dot)));
    at = at->Add(std::move(node));
    rest = rest.substr(dot + 1);
  }
  if (!rest.empty()) return Invalid(fqn, "it ends with an incomplete escape");
  if (!fqn.empty() && IsSequence(at->node.kind)) return Invalid(fqn, "it is a list");
  return at;
}

Result<void> EditedTree::AddGraft(const StateTree& other, const Graft& graft) {
  CAIRN_TRY_ASSIGN(const KeyPatterns selected, KeyPatterns::Parse(graft.patterns));
  CAIRN_TRY_ASSIGN(EditedTree from, Make(other));
  std::map<std::string, Branch*> own;                                     // leaves by FQN
  std::map<std::pair<const Branch*, std::string>, Branch*> own_children;  // by name
  CAIRN_TRY(root_->Walk("", [&](Branch& branch, const std::string& fqn, Branch& parent) {
    if (!IsContainer(branch.node.kind)) own[fqn] = &branch;
    own_children[{&parent, NameOf(branch.node)}] = &branch;
    return Result<void>();
  }));
  Branch* top = nullptr;            // the container of graft.under, once something is put into it
  std::vector<const Branch*> path;  // containers of the other step
  bool found = false;
  const auto add = [&](const Branch& leaf) -> Result<void> {
    found = true;
    const std::string fqn =
        graft.under.empty() ? leaf.leaf.from_fqn : graft.under + "." + leaf.leaf.from_fqn;
    if (const auto equal = own.find(fqn); equal != own.end()) {
      equal->second->node.kind = leaf.node.kind;
      equal->second->leaf = {.from_fqn = leaf.leaf.from_fqn, .grafted = true};
      return {};
    }
    if (top == nullptr) {
      CAIRN_TRY_ASSIGN(top, MakeDict(graft.under));
    }
    Branch* at = top;
    for (const Branch* const container : path) {
      Branch*& child = own_children[{at, NameOf(container->node)}];
      if (child == nullptr) child = at->Add(container->node);
      if (!IsContainer(child->node.kind) ||
          IsSequence(child->node.kind) != IsSequence(container->node.kind)) {
        return Invalid(
            fqn, fmt::format("'{}' is of another kind in the two steps", container->node.key));
      }
      at = child;
    }
    Branch* const added = at->Add(leaf.node);
    added->leaf = {.from_fqn = leaf.leaf.from_fqn, .grafted = true};
    return {};
  };
  const auto descend = [&](const auto& self, const Branch& branch) -> Result<void> {
    for (const auto& child : branch.children) {
      if (IsContainer(child->node.kind)) {
        path.push_back(child.get());
        CAIRN_TRY(self(self, *child));
        path.pop_back();
      } else if (selected.Matches(child->leaf.from_fqn)) {
        CAIRN_TRY(add(*child));
      }
    }
    return {};
  };
  CAIRN_TRY(descend(descend, *from.root_));
  if (!found) return NoSuchKey(graft.patterns.empty() ? "" : graft.patterns.front());
  return {};
}

Result<EditedTree::Finished> EditedTree::Finish() {
  Finished finished;
  CAIRN_TRY(root_->Fold("", finished));
  CAIRN_TRY_ASSIGN(std::vector<Leaf> leaves, FlattenTree(finished.tree));
  for (size_t i = 0; i < leaves.size(); ++i) {
    finished.leaves[i].fqn = std::move(leaves[i].fqn);
  }
  return finished;
}

}  // namespace cairn::core::internal
