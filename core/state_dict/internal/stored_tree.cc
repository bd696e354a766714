// Selects leaves by their FQNs: descends only into containers above them, and replaces all other
// children that have leaves by one leaf that is not kept, which is what PruneTree has to know.

#include "core/state_dict/internal/stored_tree.h"

#include <algorithm>
#include <utility>

#include "cairn_schema/structure_generated.h"

namespace cairn::core::internal {

Result<std::shared_ptr<const StoredTree>> StoredTree::Open(std::vector<std::byte> record) {
  CAIRN_TRY_ASSIGN(const schema::StructureRecord* const checked, CheckedStructure(record));
  // Moving the vector does not move the record.
  const std::shared_ptr<StoredTree> tree(new StoredTree(std::move(record), checked));
  CAIRN_TRY(tree->FindEnds());
  return tree;
}

/// Sets ends_. Errors have the same messages as from FlattenTree.
Result<void> StoredTree::FindEnds() {
  const auto count = static_cast<uint32_t>(record_->kinds()->size());
  if (count == 0) return Fail(ErrorCode::kDataLoss, "a state dict's structure has no root");
  ends_.resize(count);
  for (uint32_t node = count; node-- > 0;) {
    const uint32_t child_count = ChildCount(node);
    if (child_count > 0 && !IsContainer(KindOf(node))) {
      return Fail(ErrorCode::kDataLoss, "a leaf of a state dict's structure has children");
    }
    uint32_t end = node + 1;
    for (uint32_t i = 0; i < child_count; ++i) {
      if (end == count) {
        return Fail(ErrorCode::kDataLoss, "a state dict's structure ends too early");
      }
      end = ends_[end];
    }
    ends_[node] = end;
  }
  if (ends_[0] == count) return {};
  return Fail(ErrorCode::kDataLoss, "a state dict's structure has nodes outside its root");
}

NodeKind StoredTree::KindOf(uint32_t node) const {
  return static_cast<NodeKind>(record_->kinds()->Get(node));
}

// Returns the name of the key, which `storage` contains if it differs from the text.
std::string_view StoredTree::NameAt(uint32_t node, std::string& storage) const {
  const std::string_view key = record_->keys()->Get(node)->string_view();
  if (record_->forms() == nullptr && !key.contains('\\')) return key;
  storage = NameOf(NodeAt(node));
  return storage;
}

bool StoredTree::has_forms() const { return record_->forms() != nullptr; }

uint32_t StoredTree::ChildCount(uint32_t node) const { return record_->child_counts()->Get(node); }

bool StoredTree::HasLeaves(uint32_t node) const {
  for (uint32_t below = node; below < ends_[node]; ++below) {
    if (!IsContainer(KindOf(below))) return true;
  }
  return false;
}

StoredTree::Rests::Rests(std::vector<std::string_view> sorted) : keys(std::move(sorted)) {
  if (keys.empty()) return;
  if (keys.size() == 1) {
    common = keys.front();
    return;
  }
  // The first and the last of sorted keys differ where any two of them do.
  const auto [end, _] = std::ranges::mismatch(keys.front(), keys.back());
  common = keys.front().substr(0, static_cast<size_t>(end - keys.front().begin()));
}

size_t StoredTree::Rests::After(std::string_view name, size_t hint) const {
  // Children are mostly in the order of their names.
  for (size_t after = hint; after <= std::min(hint + 1, keys.size()); ++after) {
    if ((after == 0 || keys[after - 1] <= name) && (after == keys.size() || name < keys[after])) {
      return after;
    }
  }
  return static_cast<size_t>(std::ranges::upper_bound(keys, name) - keys.begin());
}

StoredTree::Relation StoredTree::Rests::Relate(std::string_view name, size_t& hint) const {
  const size_t shared_bytes = std::min(common.size(), name.size());
  if (name.substr(0, shared_bytes) != common.substr(0, shared_bytes)) return Relation::kApart;
  hint = After(name, hint);
  // A literal selects the key itself and all keys below it. Such a literal is a prefix of the name,
  // and so of all keys between the two: it is not longer than what the last of these has in common
  // with the name.
  if (hint > 0) {
    const std::string_view last = keys[hint - 1];
    const auto longest = std::ranges::mismatch(name, last).in1 - name.begin();
    for (size_t end = common.size(); end <= static_cast<size_t>(longest); ++end) {
      end = std::min(name.find('.', end), name.size());
      if (end <= static_cast<size_t>(longest) &&
          (last.size() == end || std::ranges::binary_search(keys, name.substr(0, end)))) {
        return Relation::kSelected;
      }
    }
  }
  const bool is_above =
      hint < keys.size() && keys[hint].starts_with(name) && !Below(name).keys.empty();
  return is_above ? Relation::kAbove : Relation::kApart;
}

StoredTree::Rests StoredTree::Rests::Below(std::string_view name) const {
  const std::string prefix = std::string(name) + '.';
  std::vector<std::string_view> below;
  for (auto rest = std::ranges::lower_bound(keys, prefix);
       rest != keys.end() && rest->starts_with(prefix); ++rest) {
    below.push_back(rest->substr(prefix.size()));
  }
  return Rests(std::move(below));
}

StoredTree::Relation StoredTree::Relate(uint32_t node, const Rests& rests, size_t& hint) const {
  std::string storage;
  const Relation relation = rests.Relate(NameAt(node, storage), hint);
  const bool is_leaf = !IsContainer(KindOf(node));
  return relation == Relation::kAbove && is_leaf ? Relation::kApart : relation;
}

StoredTree::Children StoredTree::FindChildren(uint32_t container, const Rests& rests) const {
  Children found;
  size_t hint = 0;
  for (uint32_t child = container + 1; child < ends_[container]; child = ends_[child]) {
    const Relation relation = Relate(child, rests, hint);
    if (relation == Relation::kApart) {
      // If leaves are lost, PruneTree removes the containers that have none.
      if (found.has_others) continue;
      if (HasLeaves(child)) {
        found.has_others = true;
        continue;
      }
    }
    found.nodes.push_back({child, relation});
  }
  return found;
}

StateTree StoredTree::Select(const LiteralKeys& literals) const {
  StateTree selection;
  std::vector<Node>& nodes = selection.nodes;
  std::vector<bool> keep;  // by leaf
  std::vector<Unfinished> path;
  const auto enter = [&](uint32_t container, Rests rests) {
    Children children = FindChildren(container, rests);
    Node& node = nodes.emplace_back(NodeAt(container));
    node.child_count = static_cast<uint32_t>(children.nodes.size()) + (children.has_others ? 1 : 0);
    path.push_back({std::move(rests), std::move(children), 0});
  };
  if (!IsContainer(KindOf(0))) {
    nodes.push_back(Node{});  // a leaf that no literal selects
    return selection;
  }
  // The children of the root have no "." before their keys.
  enter(0, Rests(std::vector<std::string_view>(literals.begin(), literals.end())));
  while (!path.empty()) {
    Unfinished& top = path.back();
    if (top.next == top.children.nodes.size()) {
      if (top.children.has_others) {
        nodes.push_back({.kind = NodeKind::kValue, .key_kind = KeyKind::kString, .key = {}});
        keep.push_back(false);
      }
      path.pop_back();
      continue;
    }
    const Child child = top.children.nodes[top.next++];
    if (child.relation == Relation::kAbove) {
      std::string storage;
      enter(child.node, top.rests.Below(NameAt(child.node, storage)));
      continue;
    }
    for (uint32_t node = child.node; node < ends_[child.node]; ++node) {
      nodes.push_back(NodeAt(node));
      if (!IsContainer(nodes.back().kind)) keep.push_back(true);
    }
  }
  return PruneTree(selection, keep);
}

}  // namespace cairn::core::internal
