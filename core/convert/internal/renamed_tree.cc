// Inserts the leaves one by one into a tree of nodes with links, then writes that in preorder.

#include "core/convert/internal/renamed_tree.h"

#include <fmt/format.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cairn::core::internal {
namespace {

// The containers and the leaf, or only the containers, that lead from the root to a node.
using Path = std::vector<Node>;

class LinkedTree {
 public:
  explicit LinkedTree(const Node& root) {
    nodes_.push_back({.node = root, .children = {}, .by_key = {}});
    if (!IsContainer(root.kind)) nodes_[0].node = Node{};
  }

  /// Adds a node and the containers above it that do not exist yet.
  Result<void> Insert(const Path& path, const std::string& fqn) {
    size_t at = 0;
    for (size_t i = 0; i < path.size(); ++i) {
      const bool is_last = i + 1 == path.size();
      const auto [found, is_new] = nodes_[at].by_key.try_emplace(path[i].key, nodes_.size());
      const size_t next = found->second;
      if (is_new) {
        nodes_[at].children.push_back(next);
        nodes_.push_back({.node = path[i], .children = {}, .by_key = {}});
      } else if (!IsContainer(nodes_[next].node.kind) || !IsContainer(path[i].kind)) {
        return Fail(Error{.code = ErrorCode::kInvalidArgument,
                          .message = "the key would be a tensor or value and contain others too; "
                                     "rename one of them",
                          .key = fqn});
      }
      if (!is_last) at = next;
    }
    return {};
  }

  StateTree Write() const {
    StateTree tree;
    tree.nodes.clear();
    struct Pending {
      size_t index;
      NodeKind parent;
    };
    std::vector<Pending> pending{{0, NodeKind::kDict}};
    while (!pending.empty()) {
      const auto [index, parent] = pending.back();
      pending.pop_back();
      const LinkedNode& from = nodes_[index];
      Node node = from.node;
      node.child_count = static_cast<uint32_t>(from.children.size());
      if (IsContainer(node.kind) && !IsMapping(node.kind) && !IsSequence(from)) {
        node.kind = NodeKind::kDict;
      }
      if (node.key_kind == KeyKind::kIndex && IsMapping(parent)) node.key_kind = KeyKind::kInt;
      for (auto child = from.children.rbegin(); child != from.children.rend(); ++child) {
        pending.push_back({*child, node.kind});
      }
      tree.nodes.push_back(std::move(node));
    }
    return tree;
  }

 private:
  struct LinkedNode {
    Node node;
    std::vector<size_t> children;
    std::unordered_map<std::string, size_t> by_key;
  };

  bool IsSequence(const LinkedNode& from) const {
    for (size_t i = 0; i < from.children.size(); ++i) {
      const Node& child = nodes_[from.children[i]].node;
      if (child.key_kind != KeyKind::kIndex || child.key != std::to_string(i)) return false;
    }
    return true;
  }

  std::vector<LinkedNode> nodes_;
};

// Calls visit(path, is_leaf) for all leaves and empty containers, in tree order.
template <typename Visit>
void ForEachPath(const StateTree& tree, const Visit& visit) {
  Path path;
  std::vector<uint32_t> missing;  // children, by container of the path
  for (size_t i = 1; i < tree.nodes.size(); ++i) {
    if (i == 1) missing.push_back(tree.nodes[0].child_count);
    path.push_back(tree.nodes[i]);
    const Node& node = tree.nodes[i];
    if (node.child_count > 0) {
      missing.push_back(node.child_count);
      continue;
    }
    visit(path, !IsContainer(node.kind));
    path.pop_back();
    while (!missing.empty() && --missing.back() == 0) {
      missing.pop_back();
      if (!path.empty()) path.pop_back();
    }
  }
}

// The path of a key that was made of the leaf at `source`, and has another name.
Path RenamedPath(const Path& source, std::string_view name) {
  Path path;
  size_t depth = 0;
  while (depth + 1 < source.size()) {
    const std::string& key = source[depth].key;
    if (!name.starts_with(key) || name.size() <= key.size() || name[key.size()] != '.') break;
    name.remove_prefix(key.size() + 1);
    path.push_back(source[depth++]);
  }
  const bool is_flat = !source.empty() && source.back().key.find('.') != std::string::npos;
  for (size_t dot = name.find('.'); !is_flat && dot != std::string_view::npos;
       dot = name.find('.')) {
    path.push_back({.kind = NodeKind::kDict,
                    .key_kind = KeyKind::kString,
                    .key = std::string(name.substr(0, dot))});
    name.remove_prefix(dot + 1);
  }
  Node leaf{.kind = NodeKind::kTensor, .key_kind = KeyKind::kString, .key = std::string(name)};
  // The last key of a container that has positions remains a position.
  if (!source.empty() && depth + 1 == source.size() && source.back().key == leaf.key) {
    leaf.key_kind = source.back().key_kind;
  }
  path.push_back(std::move(leaf));
  return path;
}

}  // namespace

Result<StateTree> RenamedTree(const StateTree& tree, std::span<const ConvertedKey> keys) {
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(tree));
  std::vector<std::vector<size_t>> keys_of_leaf(leaves.size());
  for (size_t i = 0; i < keys.size(); ++i) keys_of_leaf[keys[i].source].push_back(i);
  LinkedTree linked(tree.nodes[0]);
  size_t leaf = 0;
  Result<void> inserted = {};
  const auto insert = [&](const Path& path, NodeKind kind) {
    for (const size_t k : keys_of_leaf[leaf]) {
      if (!inserted) return;
      Path target = keys[k].fqn == leaves[leaf].fqn ? path : RenamedPath(path, keys[k].fqn);
      target.back().kind = kind;
      target.back().child_count = 0;
      inserted = linked.Insert(target, keys[k].fqn);
    }
    ++leaf;
  };
  if (!IsContainer(tree.nodes[0].kind)) {
    if (keys.size() == 1 && keys[0].fqn == leaves[0].fqn) return tree;
    insert({}, tree.nodes[0].kind);
    CAIRN_TRY(std::move(inserted));
    return linked.Write();
  }
  ForEachPath(tree, [&](const Path& path, bool is_leaf) {
    if (is_leaf) {
      insert(path, path.back().kind);
    } else if (inserted) {
      inserted = linked.Insert(path, path.back().key);
    }
  });
  CAIRN_TRY(std::move(inserted));
  return linked.Write();
}

}  // namespace cairn::core::internal
