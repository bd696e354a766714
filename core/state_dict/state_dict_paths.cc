// Builds trees from the leaves of other trees.

#include "core/state_dict/state_dict_paths.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "core/state_dict/internal/leaves.h"

namespace cairn::core {
namespace {

Error UnknownKey(const std::string& fqn) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = "the flat state dict has a leaf that the nested one lacks",
          .key = fqn};
}

// Returns the leaves of `state` for which keep[i] is true.
StateDict Keep(const StateDict& state, const std::vector<Leaf>& leaves,
               const std::vector<bool>& keep) {
  StateDict kept;
  kept.tree = PruneTree(state.tree, keep);
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    if (!keep[i]) continue;
    internal::AppendContent(state, state.tree.nodes[leaves[i].node], i, kept);
  }
  return kept;
}

// Removes a prefix from the FQNs of a tree. Requires that all leaves have it.
class Stripper {
 public:
  Stripper(const StateTree& tree, std::string_view prefix) : tree_(tree), prefix_(prefix) {}

  Result<StateTree> Strip() {
    stripped_.nodes.push_back(Node{});
    for (const Node& node : tree_.nodes) Visit(node);
    // The only container at the prefix becomes the root, so that a list remains a list.
    if (dissolved_at_prefix_ == 1 && !has_cut_keys_) {
      stripped_.nodes[0].kind = kind_at_prefix_;
    } else {
      for (const uint32_t child : root_children_) {
        Node& node = stripped_.nodes[child];
        if (node.key_kind == KeyKind::kIndex) node.key_kind = KeyKind::kInt;
      }
    }
    CAIRN_TRY(CheckRootKeys());
    return std::move(stripped_);
  }

 private:
  // A container on the path from the root to the current node.
  struct Open {
    uint32_t left;  // children that have not been visited
    std::string fqn;
    std::optional<uint32_t> moved;  // its new index; nothing if it is dissolved
  };

  void Visit(const Node& node) {
    while (!open_.empty() && open_.back().left == 0) open_.pop_back();
    const bool is_root = open_.empty();
    if (!is_root) --open_.back().left;
    std::string fqn = node.key;
    if (open_.size() > 1) fqn = open_.back().fqn + "." + node.key;
    std::optional<uint32_t> moved;
    if (!is_root && open_.back().moved) {
      moved = Append(node, *open_.back().moved, node.key, node.key_kind);
    } else if (is_root || prefix_.starts_with(fqn + ".")) {
      // Dissolve a container above the prefix, or at it.
      if (!is_root && prefix_.size() == fqn.size() + 1) {
        ++dissolved_at_prefix_;
        kind_at_prefix_ = node.kind;
      }
    } else if (fqn.starts_with(prefix_)) {
      const size_t begin_of_key = fqn.size() - node.key.size();
      const bool cut = begin_of_key < prefix_.size();
      has_cut_keys_ |= cut;
      moved = Append(node, 0, fqn.substr(prefix_.size()), cut ? KeyKind::kString : node.key_kind);
      root_children_.push_back(*moved);
    }
    open_.push_back({node.child_count, std::move(fqn), moved});
  }

  uint32_t Append(const Node& node, uint32_t parent, std::string key, KeyKind key_kind) {
    ++stripped_.nodes[parent].child_count;
    stripped_.nodes.push_back(
        {.kind = node.kind, .key_kind = key_kind, .key = std::move(key), .child_count = 0});
    return static_cast<uint32_t>(stripped_.nodes.size() - 1);
  }

  Result<void> CheckRootKeys() const {
    std::set<std::pair<KeyKind, std::string_view>> seen;
    for (const uint32_t child : root_children_) {
      const Node& node = stripped_.nodes[child];
      if (seen.emplace(node.key_kind, node.key).second) continue;
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = fmt::format("without the prefix '{}' two containers of the "
                                               "state dict have this key; rename one",
                                               prefix_),
                        .key = node.key});
    }
    return {};
  }

  const StateTree& tree_;
  std::string_view prefix_;
  StateTree stripped_;
  std::vector<Open> open_;
  std::vector<uint32_t> root_children_;
  size_t dissolved_at_prefix_ = 0;  // containers whose FQN and "." are the prefix
  NodeKind kind_at_prefix_ = NodeKind::kDict;
  bool has_cut_keys_ = false;
};

}  // namespace

Result<FlatState> FlattenStateDict(const StateDict& state) {
  CAIRN_TRY_ASSIGN(const auto leaves, state.Leaves());
  FlatState result{.flat = {}, .tree = state.tree};
  result.flat.tree.nodes.reserve(leaves.size() + 1);
  result.flat.tree.nodes[0].child_count = static_cast<uint32_t>(leaves.size());
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    const Node& node = state.tree.nodes[leaves[i].node];
    result.flat.tree.nodes.push_back(
        {.kind = node.kind, .key_kind = KeyKind::kString, .key = leaves[i].fqn, .child_count = 0});
    internal::AppendContent(state, node, i, result.flat);
  }
  return result;
}

Result<StateDict> UnflattenStateDict(const StateDict& flat, const StateTree& tree) {
  CAIRN_TRY_ASSIGN(const auto flat_leaves, flat.Leaves());
  CAIRN_TRY_ASSIGN(const auto leaves, FlattenTree(tree));
  std::unordered_map<std::string_view, uint32_t> by_fqn;
  for (uint32_t i = 0; i < flat_leaves.size(); ++i) by_fqn.emplace(flat_leaves[i].fqn, i);
  // Take the kinds of leaves from `flat`, because a leaf may have changed its kind.
  StateTree whole = tree;
  std::vector<bool> keep(leaves.size());
  StateDict nested;
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    const auto found = by_fqn.find(leaves[i].fqn);
    if (found == by_fqn.end()) continue;
    keep[i] = true;
    const Node& node = flat.tree.nodes[flat_leaves[found->second].node];
    whole.nodes[leaves[i].node].kind = node.kind;
    internal::AppendContent(flat, node, found->second, nested);
    by_fqn.erase(found);
  }
  if (!by_fqn.empty()) {
    for (const Leaf& leaf : flat_leaves) {
      if (by_fqn.contains(leaf.fqn)) return Fail(UnknownKey(leaf.fqn));
    }
  }
  nested.tree = PruneTree(whole, keep);
  return nested;
}

Result<StateDict> FilterStateDict(const StateDict& state, const KeyPatterns& patterns) {
  CAIRN_TRY_ASSIGN(const auto leaves, state.Leaves());
  std::vector<bool> keep(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) keep[i] = patterns.Matches(leaves[i].fqn);
  return Keep(state, leaves, keep);
}

Result<StateDict> StripPrefix(const StateDict& state, std::string_view prefix) {
  CAIRN_TRY_ASSIGN(const auto leaves, state.Leaves());
  if (prefix.empty()) return state;
  std::vector<bool> keep(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    // The rest of the FQN must not be empty, because a leaf needs a key.
    keep[i] = leaves[i].fqn.size() > prefix.size() && leaves[i].fqn.starts_with(prefix);
  }
  StateDict kept = Keep(state, leaves, keep);
  CAIRN_TRY_ASSIGN(kept.tree, Stripper(kept.tree, prefix).Strip());
  return kept;
}

}  // namespace cairn::core
