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
Result<StateTree> Strip(const StateTree& tree, std::string_view prefix) {
  CAIRN_TRY_ASSIGN(const std::vector<uint32_t> parents, ParentsOf(tree));
  StateTree stripped{.nodes = {Node{}}};
  const auto append = [&](const Node& node, uint32_t parent, std::string key, KeyKind key_kind) {
    ++stripped.nodes[parent].child_count;
    stripped.nodes.push_back(
        {.kind = node.kind, .key_kind = key_kind, .key = std::move(key), .child_count = 0});
    return static_cast<uint32_t>(stripped.nodes.size() - 1);
  };
  std::vector<std::string> fqns(tree.nodes.size());
  std::vector<std::optional<uint32_t>> moved(tree.nodes.size());  // nothing for a dissolved one
  std::vector<uint32_t> root_children;
  size_t dissolved_at_prefix = 0;  // containers whose FQN and "." are the prefix
  NodeKind kind_at_prefix = NodeKind::kDict;
  bool has_cut_keys = false;
  for (uint32_t i = 1; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    const uint32_t parent = parents[i];
    std::string& fqn = fqns[i];
    fqn = parent == 0 ? node.key : fqns[parent] + "." + node.key;
    if (moved[parent]) {
      moved[i] = append(node, *moved[parent], node.key, node.key_kind);
    } else if (prefix.starts_with(fqn + ".")) {
      if (prefix.size() != fqn.size() + 1) continue;
      ++dissolved_at_prefix;
      kind_at_prefix = node.kind;
    } else if (fqn.starts_with(prefix)) {
      const bool is_cut = fqn.size() - node.key.size() < prefix.size();
      has_cut_keys |= is_cut;
      moved[i] =
          append(node, 0, fqn.substr(prefix.size()), is_cut ? KeyKind::kString : node.key_kind);
      root_children.push_back(*moved[i]);
    }
  }
  // The only container at the prefix becomes the root, so that a list remains a list.
  const bool has_kind = dissolved_at_prefix == 1 && !has_cut_keys;
  if (has_kind) stripped.nodes[0].kind = kind_at_prefix;
  std::set<std::pair<KeyKind, std::string_view>> seen;
  for (const uint32_t child : root_children) {
    Node& node = stripped.nodes[child];
    if (!has_kind && node.key_kind == KeyKind::kIndex) node.key_kind = KeyKind::kInt;
    if (seen.emplace(node.key_kind, node.key).second) continue;
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = fmt::format("without the prefix '{}' two containers of the "
                                             "state dict have this key; rename one",
                                             prefix),
                      .key = node.key});
  }
  return stripped;
}

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
  CAIRN_TRY_ASSIGN(kept.tree, Strip(kept.tree, prefix));
  return kept;
}

}  // namespace cairn::core
