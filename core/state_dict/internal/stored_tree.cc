// Selects leaves by their FQNs: descends only into containers above them, and replaces all other
// children that have leaves by one leaf that is not kept, which is what PruneTree has to know.

#include "core/state_dict/internal/stored_tree.h"

#include <algorithm>
#include <utility>

#include "cairn_schema/structure_generated.h"

namespace cairn::core::internal {
namespace {

// Containers with fewer children are always scanned.
constexpr uint32_t kMinSortedChildren = 256;
// Sorting children costs about as much as this many scans of them.
constexpr uint32_t kScansBeforeSort = 8;
// A search costs about as much as comparing this many children.
constexpr uint64_t kSearchCost = 64;

// Returns the first 8 bytes as a number, with zeros for bytes that a shorter text lacks: the
// numbers have the same order as the texts, if they differ.
uint64_t BigEndianHead(std::string_view text) {
  uint64_t head = 0;
  for (size_t i = 0; i < sizeof(head); ++i) {
    head = head << 8 | (i < text.size() ? static_cast<uint8_t>(text[i]) : 0);
  }
  return head;
}

}  // namespace

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

std::string_view StoredTree::KeyOf(uint32_t node) const {
  return record_->keys()->Get(node)->string_view();
}

uint32_t StoredTree::ChildCount(uint32_t node) const { return record_->child_counts()->Get(node); }

Node StoredTree::NodeAt(uint32_t node) const {
  return {.kind = KindOf(node),
          .key_kind = static_cast<KeyKind>(record_->key_kinds()->Get(node)),
          .key = std::string(KeyOf(node)),
          .child_count = ChildCount(node)};
}

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

StoredTree::Relation StoredTree::Rests::Relate(std::string_view key) const {
  const size_t shared_bytes = std::min(common.size(), key.size());
  if (key.substr(0, shared_bytes) != common.substr(0, shared_bytes)) return Relation::kApart;
  // A literal selects the key itself and all keys below it.
  for (size_t end = 0; end <= key.size(); ++end) {
    end = std::min(key.find('.', end), key.size());
    if (std::ranges::binary_search(keys, key.substr(0, end))) return Relation::kSelected;
  }
  return Below(key).keys.empty() ? Relation::kApart : Relation::kAbove;
}

StoredTree::Rests StoredTree::Rests::Below(std::string_view key) const {
  const std::string prefix = std::string(key) + '.';
  std::vector<std::string_view> below;
  for (auto rest = std::ranges::lower_bound(keys, prefix);
       rest != keys.end() && rest->starts_with(prefix); ++rest) {
    below.push_back(rest->substr(prefix.size()));
  }
  return Rests(std::move(below));
}

StoredTree::Relation StoredTree::Relate(uint32_t node, const Rests& rests) const {
  const Relation relation = rests.Relate(KeyOf(node));
  const bool is_leaf = !IsContainer(KindOf(node));
  return relation == Relation::kAbove && is_leaf ? Relation::kApart : relation;
}

StoredTree::Children StoredTree::ScanChildren(uint32_t container, const Rests& rests) const {
  Children found;
  for (uint32_t child = container + 1; child < ends_[container]; child = ends_[child]) {
    const Relation relation = Relate(child, rests);
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

StoredTree::Children StoredTree::SearchChildren(uint32_t container, const ChildIndex& index,
                                                const Rests& rests, uint64_t& visited_count) const {
  std::vector<uint32_t> nodes = index.without;
  const auto key_of = [this](uint32_t node) { return KeyOf(node); };
  const auto add_equal = [&](std::string_view key) {
    const auto equal = std::ranges::equal_range(index.by_key, key, {}, key_of);
    nodes.insert(nodes.end(), equal.begin(), equal.end());
  };
  for (const std::string_view rest : rests.keys) {
    add_equal(rest);
    for (size_t dot = rest.find('.'); dot != rest.npos; dot = rest.find('.', dot + 1)) {
      add_equal(rest.substr(0, dot));
    }
    const std::string prefix = std::string(rest) + '.';
    for (auto child = std::ranges::lower_bound(index.by_key, prefix, {}, key_of);
         child != index.by_key.end() && KeyOf(*child).starts_with(prefix); ++child) {
      nodes.push_back(*child);
    }
  }
  std::ranges::sort(nodes);
  const auto repeated = std::ranges::unique(nodes);
  nodes.erase(repeated.begin(), repeated.end());
  visited_count += nodes.size();
  Children found;
  found.has_others = nodes.size() < ChildCount(container);
  for (const uint32_t node : nodes) {
    const Relation relation = Relate(node, rests);
    if (relation == Relation::kApart && HasLeaves(node)) {
      found.has_others = true;
    } else {
      found.nodes.push_back({node, relation});
    }
  }
  return found;
}

void StoredTree::Sort(uint32_t container, ChildIndex& index) const {
  // Comparing the first bytes in which keys may differ as one number is several times as fast as
  // comparing the keys, which are all over the record.
  struct Entry {
    uint64_t head;
    uint32_t node;
  };
  std::vector<Entry> entries;
  entries.reserve(ChildCount(container));
  std::string_view common = KeyOf(container + 1);
  for (uint32_t child = container + 1; child < ends_[container]; child = ends_[child]) {
    entries.push_back({.head = 0, .node = child});
    if (!HasLeaves(child)) index.without.push_back(child);
    const auto [end, _] = std::ranges::mismatch(common, KeyOf(child));
    common = common.substr(0, static_cast<size_t>(end - common.begin()));
  }
  for (Entry& entry : entries) {
    entry.head = BigEndianHead(KeyOf(entry.node).substr(common.size()));
  }
  std::ranges::sort(entries, [this](const Entry& a, const Entry& b) {
    return a.head != b.head ? a.head < b.head : KeyOf(a.node) < KeyOf(b.node);
  });
  index.by_key.reserve(entries.size());
  for (const Entry& entry : entries) index.by_key.push_back(entry.node);
}

/// Returns the index of a container, or null if its children are to be scanned.
const StoredTree::ChildIndex* StoredTree::IndexOf(uint32_t container) const {
  const MutexLock lock(mutex_);
  ChildIndex& index = indexes_[container];
  if (index.by_key.empty() && ++index.scan_count > kScansBeforeSort) Sort(container, index);
  return index.by_key.empty() ? nullptr : &index;
}

StoredTree::Children StoredTree::FindChildren(uint32_t container, const Rests& rests,
                                              uint64_t& visited_count) const {
  const uint32_t child_count = ChildCount(container);
  if (child_count >= kMinSortedChildren && rests.keys.size() * kSearchCost < child_count) {
    const ChildIndex* const index = IndexOf(container);
    if (index != nullptr) return SearchChildren(container, *index, rests, visited_count);
  }
  visited_count += child_count;
  return ScanChildren(container, rests);
}

TreeSelection StoredTree::Select(const LiteralKeys& literals) const {
  TreeSelection selection{.tree = {}, .visited_count = 1};
  std::vector<Node>& nodes = selection.tree.nodes;
  std::vector<bool> keep;  // by leaf
  std::vector<Unfinished> path;
  const auto enter = [&](uint32_t container, Rests rests) {
    Children children = FindChildren(container, rests, selection.visited_count);
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
      enter(child.node, top.rests.Below(KeyOf(child.node)));
      continue;
    }
    for (uint32_t node = child.node; node < ends_[child.node]; ++node) {
      nodes.push_back(NodeAt(node));
      if (!IsContainer(nodes.back().kind)) keep.push_back(true);
    }
    selection.visited_count += ends_[child.node] - child.node;
  }
  selection.tree = PruneTree(selection.tree, keep);
  return selection;
}

}  // namespace cairn::core::internal
