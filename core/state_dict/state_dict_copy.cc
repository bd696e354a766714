#include "core/state_dict/state_dict_copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

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

struct Place {
  const Node* node = nullptr;
  uint32_t leaf = 0;  // number of leaves before the node
  std::string fqn;
};

// Returns the nodes in preorder, each with the keys and their kinds on the path to it. Requires a
// tree that FlattenTree accepts.
std::vector<std::pair<std::string, Place>> PlacesOf(const StateTree& tree) {
  const auto parents = ParentsOf(tree);
  CAIRN_CHECK(parents.has_value());
  std::vector<std::pair<std::string, Place>> places;
  uint32_t leaves = 0;
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    std::string path, fqn = node.key;
    if (i > 0) {
      const auto& [parent_path, parent] = places[(*parents)[i]];
      path = parent_path + static_cast<char>(node.key_kind) + node.key + '\0';
      if ((*parents)[i] > 0) fqn = parent.fqn + "." + node.key;
    }
    places.emplace_back(std::move(path), Place{&node, leaves, std::move(fqn)});
    leaves += IsContainer(node.kind) ? 0 : 1;
  }
  return places;
}

// Kinds with the same general kind may differ between the two dicts.
NodeKind GeneralKind(NodeKind kind) {
  if (IsMapping(kind)) return NodeKind::kDict;
  return IsContainer(kind) ? NodeKind::kList : kind;
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
  const bool same_mesh =
      a->mesh && b->mesh ? a->mesh->IsSame(*b->mesh) : a->mesh.get() == b->mesh.get();
  if (!same_mesh || a->placements != b->placements) {
    return Differs(fqn, "meshes or placements are not the same");
  }
  if (a->mesh == nullptr &&
      !std::ranges::equal(a->parts, b->parts, {}, &ShardView::box, &ShardView::box)) {
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
  const auto in_a = PlacesOf(a.tree);
  const auto in_b = PlacesOf(b.tree);
  std::unordered_map<std::string_view, const Place*> unmatched;  // of b
  for (const auto& [path, place] : in_b) unmatched.emplace(path, &place);
  std::vector<uint32_t> matches(a.slot.size());
  for (const auto& [path, place] : in_a) {
    const auto found = unmatched.find(path);
    if (found == unmatched.end()) return Differs(place.fqn, "only the first has this key");
    const Place& other = *found->second;
    unmatched.erase(found);
    const NodeKind kind = GeneralKind(place.node->kind);
    const NodeKind other_kind = GeneralKind(other.node->kind);
    if (kind != other_kind) {
      return Differs(place.fqn, fmt::format("{} and {}", KindName(kind), KindName(other_kind)));
    }
    if (IsContainer(kind)) {
      const uint32_t count = place.node->child_count, other_count = other.node->child_count;
      if (IsMapping(kind) || count == other_count) continue;
      return Differs(place.fqn, fmt::format("lists of {} and {} items", count, other_count));
    }
    matches[place.leaf] = other.leaf;
    if (IsTensor(kind)) {
      CAIRN_TRY(SameLeaf(a, a.slot[place.leaf], b, b.slot[other.leaf], place.fqn));
    }
  }
  for (const auto& [path, place] : in_b) {
    if (unmatched.contains(path)) return Differs(place.fqn, "only the second has this key");
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
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    internal::ForEachMemory(state, i, [](TensorView& view) { view.device = kHostDevice; });
  }
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
