#include "core/state_dict/internal/leaves.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "cairn_schema/structure_generated.h"
#include "core/tensor/internal/memory_span.h"

namespace cairn::core::internal {
namespace {

// Returns a leaf that has the FQN of an earlier one; null if there is none. A hash table of indices
// with open addressing: every save and listing calls this, and a set would allocate a node per
// leaf.
const LeafName* FindRepeated(const std::vector<LeafName>& leaves) {
  if (std::ranges::is_sorted(leaves, std::ranges::less_equal(), &LeafName::fqn)) return nullptr;
  constexpr uint32_t kFree = ~uint32_t{0};
  std::vector<uint32_t> table(std::bit_ceil(2 * leaves.size() + 1), kFree);
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    size_t at = std::hash<std::string_view>()(leaves[i].fqn) & (table.size() - 1);
    for (; table[at] != kFree; at = (at + 1) & (table.size() - 1)) {
      if (leaves[table[at]].fqn == leaves[i].fqn) return &leaves[i];
    }
    table[at] = i;
  }
  return nullptr;
}

std::vector<Leaf> ToLeaves(std::span<const LeafName> names) {
  std::vector<Leaf> leaves;
  leaves.reserve(names.size());
  for (const auto& [node, fqn] : names) leaves.push_back({node, std::string(fqn)});
  return leaves;
}

}  // namespace

Result<std::vector<LeafName>> LeafNames(const StateTree& tree, Arena& arena) {
  CAIRN_TRY_ASSIGN(const std::vector<uint32_t> parents, ParentsOf(tree));
  std::vector<LeafName> leaves;
  leaves.reserve(tree.nodes.size());
  // A container on the path from the root to the current node, whose FQN begins the current one.
  struct Prefix {
    uint32_t node;
    size_t length_bytes;
  };
  std::vector<Prefix> prefixes;
  std::string fqn;
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    while (!prefixes.empty() && prefixes.back().node != parents[i]) prefixes.pop_back();
    const size_t begin = prefixes.empty() ? 0 : prefixes.back().length_bytes;
    fqn.resize(begin);
    if (i > 0) {
      // The root has the FQN "", and its children have no "." before them.
      if (parents[i] != 0) fqn.push_back('.');
      AppendName(node, fqn);
    }
    if (const size_t nul = fqn.find('\0', begin); nul != std::string::npos) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "a key contains a NUL character; rename it",
                        .key = fqn.substr(0, nul)});
    }
    if (fqn.size() > kMaxFqnBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("a key path is longer than {} bytes: {}...", kMaxFqnBytes,
                              fqn.substr(0, 80)));
    }
    if (!IsContainer(node.kind)) {
      leaves.push_back({i, arena.Copy(fqn)});
      continue;
    }
    if (prefixes.size() == kMaxTreeLevels) {
      return Fail(
          Error{.code = ErrorCode::kInvalidArgument,
                .message = fmt::format("the state is nested deeper than {} levels", kMaxTreeLevels),
                .key = fqn.substr(0, 80)});
    }
    prefixes.push_back({i, fqn.size()});
  }
  if (const LeafName* second = FindRepeated(leaves)) {
    return Fail(Error{
        .code = ErrorCode::kInvalidArgument,
        .message = "two leaves of the state dict, perhaps of different ranks, have this key path; "
                   "rename one",
        .key = std::string(second->fqn)});
  }
  return leaves;
}

Result<std::vector<LeafName>> LeafNames(const StateDict& state, Arena& arena) {
  CAIRN_TRY_ASSIGN(std::vector<LeafName> leaves, LeafNames(state.tree, arena));
  if (leaves.size() != state.slot.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the state dict has {} leaves in its tree but contents for {}",
                            leaves.size(), state.slot.size()));
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool is_tensor = IsTensor(state.tree.nodes[leaves[i].node].kind);
    if (state.slot[i] < (is_tensor ? state.tensors.size() : state.values.size())) continue;
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "a leaf of the state dict refers to contents that it lacks",
                      .key = std::string(leaves[i].fqn)});
  }
  return leaves;
}

bool IsRecordOf(std::span<const std::byte> bytes, const StateTree& tree) {
  const auto& record = *flatbuffers::GetRoot<schema::StructureRecord>(bytes.data());
  if (record.kinds()->size() != tree.nodes.size()) return false;
  const auto* const forms = record.forms();
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    if (static_cast<NodeKind>(record.kinds()->Get(i)) != node.kind ||
        static_cast<KeyKind>(record.key_kinds()->Get(i)) != node.key_kind ||
        record.child_counts()->Get(i) != node.child_count ||
        (forms == nullptr ? KeyForm::kPlain : static_cast<KeyForm>(forms->Get(i))) != node.form ||
        record.keys()->Get(i)->string_view() != node.key) {
      return false;
    }
  }
  return true;
}

Result<void> CheckMemory(const StateDict& state, const std::vector<Leaf>& leaves) {
  CAIRN_CHECK(leaves.size() == state.slot.size());
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    if (!IsTensor(state.tree.nodes[leaves[i].node].kind)) continue;
    Result<void> checked;
    ForEachMemory(state, state.slot[i], [&](const TensorView& view) {
      if (!checked) return;
      if (auto span = SpanOf(view); !span) checked = Fail(std::move(span).error());
    });
    if (!checked) return Fail(std::move(checked).error().WithKey(leaves[i].fqn));
  }
  return {};
}

void AddDevices(const StateDict& state, std::set<int>& devices) {
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    ForEachMemory(state, i, [&](const TensorView& view) {
      if (view.device != kHostDevice) devices.insert(view.device);
    });
  }
}

}  // namespace cairn::core::internal

namespace cairn::core {

Result<std::vector<Leaf>> FlattenTree(const StateTree& tree) {
  internal::Arena arena;
  CAIRN_TRY_ASSIGN(const auto names, internal::LeafNames(tree, arena));
  return internal::ToLeaves(names);
}

Result<std::vector<Leaf>> StateDict::Leaves() const {
  internal::Arena arena;
  CAIRN_TRY_ASSIGN(const auto names, internal::LeafNames(*this, arena));
  return internal::ToLeaves(names);
}

}  // namespace cairn::core
