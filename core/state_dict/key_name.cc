// Escapes, and the search for leaves whose FQNs would be equal.

#include "core/state_dict/key_name.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cairn::core {
namespace {

// Whether leaves below two children of a container may have the same FQN: the container has keys of
// several kinds, or a key with a "." next to a container.
bool MayHaveEqualNames(const StateTree& tree, std::span<const uint32_t> parents) {
  struct Children {
    bool has_container = false;
    uint8_t kinds = 0;  // a bit for each
  };
  std::vector<Children> children(tree.nodes.size());
  for (size_t i = 1; i < tree.nodes.size(); ++i) {
    Children& all = children[parents[i]];
    all.has_container |= IsContainer(tree.nodes[i].kind);
    all.kinds |= static_cast<uint8_t>(1u << static_cast<unsigned>(tree.nodes[i].key_kind));
    if ((all.kinds & (all.kinds - 1)) != 0) return true;
  }
  for (size_t i = 1; i < tree.nodes.size(); ++i) {
    if (children[parents[i]].has_container && tree.nodes[i].key.contains('.')) return true;
  }
  return false;
}

// The nodes from a child of the root to a leaf.
using Path = std::vector<uint32_t>;

// Separates leaves of the same FQN, whose paths have the same first `depth` nodes.
void Separate(std::vector<Path> paths, size_t depth, StateTree& tree) {
  const auto at = [&](const Path& path) { return path[depth]; };
  while (std::ranges::all_of(paths, [&](const Path& path) { return at(path) == at(paths[0]); })) {
    ++depth;
  }
  std::ranges::stable_sort(paths, {}, at);
  std::vector<std::vector<Path>> groups;  // by child
  for (Path& path : paths) {
    if (groups.empty() || at(groups.back().front()) != at(path)) groups.emplace_back();
    groups.back().push_back(std::move(path));
  }
  const auto key_of = [&](const std::vector<Path>& group) -> const std::string& {
    return tree.nodes[at(group.front())].key;
  };
  const auto size_of = [&](const std::vector<Path>& group) { return key_of(group).size(); };
  const size_t shortest = size_of(*std::ranges::min_element(groups, {}, size_of));
  const bool is_single = std::ranges::count(groups, shortest, size_of) == 1;
  for (std::vector<Path>& group : groups) {
    Node& node = tree.nodes[at(group.front())];
    const bool stays =
        node.key.size() == shortest && (is_single || node.key_kind == KeyKind::kString);
    if (!stays) node.form = KeyForm::kEscaped;
    if (group.size() > 1) Separate(std::move(group), depth + 1, tree);
  }
}

}  // namespace

Result<Node> ParseName(std::string_view name) {
  Node node{.key_kind = KeyKind::kString};
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '\\') {
      node.key += name[i];
      continue;
    }
    const char next = i + 1 < name.size() ? name[++i] : '\0';
    if (next != '\\') node.form = KeyForm::kEscaped;
    if (next == '.' || next == '\\') node.key += next;
    if (next == 'I') node.key_kind = KeyKind::kInt;
  }
  const bool is_number = !node.key.empty() && (node.key == "0" || node.key.front() != '0') &&
                         node.key.find_first_not_of("0123456789") == std::string::npos;
  if (NameOf(node) == name && (node.key_kind == KeyKind::kString || is_number)) return node;
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = "it is not the name of a key: '\\' is written '\\\\', and a '.' "
                               "inside a key '\\.'",
                    .key = std::string(name)});
}

size_t FindSeparator(std::string_view fqn, size_t from) {
  for (size_t i = from; i < fqn.size(); ++i) {
    if (fqn[i] == '.') return i;
    if (fqn[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

std::string JoinedTexts(std::string_view fqn) {
  std::string texts;
  for (size_t i = 0; i < fqn.size(); ++i) {
    if (fqn[i] == '\\' && ++i < fqn.size() && fqn[i] != '.' && fqn[i] != '\\') continue;  // a mark
    if (i < fqn.size()) texts += fqn[i];
  }
  return texts;
}

bool HasForms(const StateTree& tree) {
  return std::ranges::any_of(tree.nodes,
                             [](const Node& node) { return node.form != KeyForm::kPlain; });
}

void EscapeEqualNames(StateTree& tree) {
  const auto parents = internal::ParentsOf(tree);
  CAIRN_CHECK(parents.has_value());
  if (!MayHaveEqualNames(tree, *parents)) return;
  std::vector<std::string> names(tree.nodes.size());
  std::unordered_map<std::string_view, std::vector<uint32_t>> leaves;  // by name
  for (uint32_t i = 1; i < tree.nodes.size(); ++i) {
    const uint32_t parent = (*parents)[i];
    if (parent != 0) names[i] = names[parent] + '.';
    names[i] += tree.nodes[i].key;
    if (!IsContainer(tree.nodes[i].kind)) leaves[names[i]].push_back(i);
  }
  for (const auto& [name, nodes] : leaves) {
    if (nodes.size() == 1) continue;
    std::vector<Path> paths;
    for (uint32_t node : nodes) {
      Path& path = paths.emplace_back();
      for (; node != 0; node = (*parents)[node]) path.push_back(node);
      std::ranges::reverse(path);
    }
    Separate(std::move(paths), 0, tree);
  }
}

}  // namespace cairn::core
