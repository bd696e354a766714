// Matches trees leaf by leaf, and copies strided tensors.

#include "core/state_dict/state_dict_copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/device/internal/device_queues.h"
#include "core/state_dict/internal/leaves.h"

namespace cairn::core {
namespace {

using internal::FindSharding;

std::unexpected<Error> Differs(std::string fqn, std::string how) {
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = "two state dicts differ: " + std::move(how),
                    .key = std::move(fqn)});
}

// A tree with the children of each node, and the leaf number of each node.
class Navigator {
 public:
  // Requires a tree that FlattenTree accepts.
  explicit Navigator(const StateTree& tree)
      : tree_(tree), first_child_(tree.nodes.size() + 1), leaf_(tree.nodes.size()) {
    uint32_t leaves = 0;
    for (size_t i = 0; i < tree.nodes.size(); ++i) {
      first_child_[i + 1] = first_child_[i] + tree.nodes[i].child_count;
      leaf_[i] = leaves;
      leaves += IsContainer(tree.nodes[i].kind) ? 0 : 1;
    }
    children_.resize(first_child_.back());
    // Nodes whose children are not complete, with the index of the next child in children_.
    std::vector<std::pair<uint32_t, uint32_t>> open;
    for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
      while (!open.empty() && open.back().second == first_child_[open.back().first + 1]) {
        open.pop_back();
      }
      if (!open.empty()) children_[open.back().second++] = i;
      open.emplace_back(i, first_child_[i]);
    }
  }

  const Node& node(uint32_t i) const { return tree_.nodes[i]; }
  std::span<const uint32_t> children(uint32_t i) const {
    return std::span(children_).subspan(first_child_[i], tree_.nodes[i].child_count);
  }
  uint32_t leaf(uint32_t i) const { return leaf_[i]; }

 private:
  const StateTree& tree_;
  std::vector<uint32_t> first_child_;
  std::vector<uint32_t> children_;
  std::vector<uint32_t> leaf_;  // number of leaves before the node
};

std::string_view KindName(NodeKind kind) {
  if (IsMapping(kind)) return "a dict";
  if (IsContainer(kind)) return "a list";
  switch (kind) {
    case NodeKind::kTensor:
      return "a tensor";
    case NodeKind::kNumpyArray:
      return "a numpy array";
    case NodeKind::kNumpyScalar:
      return "a numpy scalar";
    default:
      return "a plain value";
  }
}

// Nodes of two trees that have to match.
struct Pair {
  uint32_t a = 0;
  uint32_t b = 0;
  std::string fqn;
};

std::string Below(const Pair& parent, const Node& child) {
  return parent.a == 0 ? child.key : parent.fqn + "." + child.key;
}

// Appends the pairs of children of two containers, the last first.
Result<void> PairChildren(const Navigator& a, const Navigator& b, const Pair& pair,
                          std::vector<Pair>& pairs) {
  const auto of_a = a.children(pair.a);
  const auto of_b = b.children(pair.b);
  const size_t begin = pairs.size();
  if (!IsMapping(a.node(pair.a).kind)) {
    if (of_a.size() != of_b.size()) {
      return Differs(pair.fqn, fmt::format("lists of {} and {} items", of_a.size(), of_b.size()));
    }
    for (size_t i = 0; i < of_a.size(); ++i) {
      pairs.push_back({of_a[i], of_b[i], Below(pair, a.node(of_a[i]))});
    }
  } else {
    using Key = std::pair<KeyKind, std::string_view>;
    std::map<Key, uint32_t> by_key;
    for (const uint32_t child : of_b) {
      by_key.emplace(Key(b.node(child).key_kind, b.node(child).key), child);
    }
    for (const uint32_t child : of_a) {
      const Node& node = a.node(child);
      const auto found = by_key.find({node.key_kind, node.key});
      if (found == by_key.end()) return Differs(Below(pair, node), "only the first has this key");
      pairs.push_back({child, found->second, Below(pair, node)});
      by_key.erase(found);
    }
    if (!by_key.empty()) {
      for (const uint32_t child : of_b) {
        const Node& node = b.node(child);
        if (!by_key.contains({node.key_kind, node.key})) continue;
        return Differs(Below(pair, node), "only the second has this key");
      }
    }
  }
  std::reverse(pairs.begin() + static_cast<ptrdiff_t>(begin), pairs.end());
  return {};
}

bool SameMesh(const DeviceMesh* a, const DeviceMesh* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr || a->ranks() != b->ranks()) return false;
  return std::ranges::equal(a->dims(), b->dims(), {}, &DeviceMesh::Dim::size,
                            &DeviceMesh::Dim::size);
}

Result<void> SameSharding(const Sharding* a, const Sharding* b, const std::string& fqn) {
  if (a == nullptr && b == nullptr) return {};
  if (a == nullptr || b == nullptr) {
    return Differs(fqn, "one is sharded, the other is not");
  }
  if (a->global_shape != b->global_shape) {
    return Differs(fqn, fmt::format("global shapes [{}] and [{}]", fmt::join(a->global_shape, ", "),
                                    fmt::join(b->global_shape, ", ")));
  }
  if (!SameMesh(a->mesh.get(), b->mesh.get()) || a->placements != b->placements) {
    return Differs(fqn, "meshes or placements are not the same");
  }
  if (a->mesh == nullptr &&
      !std::ranges::equal(a->parts, b->parts, {}, &Sharding::Part::box, &Sharding::Part::box)) {
    return Differs(fqn, "their shards are not the same boxes");
  }
  return {};
}

Result<void> SameLeaf(const StateDict& a, uint32_t of_a, const StateDict& b, uint32_t of_b,
                      const std::string& fqn) {
  const TensorView& left = a.tensors[of_a];
  const TensorView& right = b.tensors[of_b];
  if (left.dtype != right.dtype || left.shape != right.shape) {
    return Differs(fqn, fmt::format("{} [{}] and {} [{}]", schema::DTypeName(left.dtype),
                                    fmt::join(left.shape, ", "), schema::DTypeName(right.dtype),
                                    fmt::join(right.shape, ", ")));
  }
  return SameSharding(FindSharding(a, of_a), FindSharding(b, of_b), fqn);
}

// Returns the leaf of `b` for each leaf of `a`. Requires that both satisfy StateDict::Leaves.
Result<std::vector<uint32_t>> MatchLeaves(const StateDict& a, const StateDict& b) {
  const Navigator in_a(a.tree);
  const Navigator in_b(b.tree);
  std::vector<uint32_t> matches(a.slot.size());
  std::vector<Pair> pairs = {{.a = 0, .b = 0, .fqn = a.tree.nodes[0].key}};
  while (!pairs.empty()) {
    const Pair pair = std::move(pairs.back());
    pairs.pop_back();
    const NodeKind kind = in_a.node(pair.a).kind;
    const NodeKind other = in_b.node(pair.b).kind;
    if (KindName(kind) != KindName(other)) {
      return Differs(pair.fqn, fmt::format("{} and {}", KindName(kind), KindName(other)));
    }
    if (IsContainer(kind)) {
      CAIRN_TRY(PairChildren(in_a, in_b, pair, pairs));
      continue;
    }
    const uint32_t leaf = in_a.leaf(pair.a);
    matches[leaf] = in_b.leaf(pair.b);
    if (IsTensor(kind)) {
      CAIRN_TRY(SameLeaf(a, a.slot[leaf], b, b.slot[matches[leaf]], pair.fqn));
    }
  }
  return matches;
}

}  // namespace

Result<void> SameStructure(const StateDict& a, const StateDict& b) {
  CAIRN_TRY(a.Leaves());
  CAIRN_TRY(b.Leaves());
  CAIRN_TRY(MatchLeaves(a, b));
  return {};
}

Result<HostState> CreateCpuStateDict(const StateDict& like, const HostMemoryOptions& options) {
  StateDict state = like;
  internal::MoveToHost(state);
  return HostState::Allocate(std::move(state), options);
}

Result<void> CopyStateDict(const StateDict& source, const StateTarget& target,
                           std::span<const DeviceStream> streams) {
  StateDict& into = target.state();
  CAIRN_TRY_ASSIGN(const auto leaves, source.Leaves());
  CAIRN_TRY_ASSIGN(const auto target_leaves, into.Leaves());
  CAIRN_TRY_ASSIGN(const auto matches, MatchLeaves(source, into));
  CAIRN_TRY(internal::CheckMemory(source, leaves));
  CAIRN_TRY(internal::CheckMemory(into, target_leaves));
  std::set<int> devices;
  internal::AddDevices(source, devices);
  internal::AddDevices(into, devices);
  CAIRN_TRY_ASSIGN(const auto queues, internal::DeviceQueues::Open(devices, streams));
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    const uint32_t from = source.slot[i];
    const uint32_t to = into.slot[matches[i]];
    if (!IsTensor(source.tree.nodes[leaves[i].node].kind)) {
      into.values[to] = source.values[from];
      continue;
    }
    // Both sides have the same number of views, in the same order: SameSharding has checked it.
    std::vector<TensorTarget> targets;
    internal::ForEachMemory(
        into, to, [&](const TensorView& view) { targets.push_back(target.Writable(view)); });
    size_t next = 0;
    Result<void> copied;
    internal::ForEachMemory(source, from, [&](const TensorView& view) {
      if (copied) copied = queues.Copy(view, targets[next++]);
    });
    CAIRN_TRY(copied);
  }
  return queues.Await();
}

Result<HostState> OffloadStateDict(const StateDict& state, const HostMemoryOptions& options,
                                   std::span<const DeviceStream> streams) {
  CAIRN_TRY_ASSIGN(HostState copy, CreateCpuStateDict(state, options));
  CAIRN_TRY(CopyStateDict(state, copy.target(), streams));
  return copy;
}

}  // namespace cairn::core
