#include "core/interop/torch/imported_state.h"

#include <utility>

#include "core/state_dict/internal/leaves.h"

namespace cairn::core {
namespace {

// Appends the nodes of `from` from index `first` on, and the contents of all of its leaves.
void AppendNodes(const StateDict& from, size_t first, StateDict& to) {
  const auto& nodes = from.tree.nodes;
  to.tree.nodes.insert(to.tree.nodes.end(), nodes.begin() + static_cast<ptrdiff_t>(first),
                       nodes.end());
  uint32_t leaf = 0;
  for (const Node& node : nodes) {
    if (!IsContainer(node.kind)) internal::AppendContent(from, node, leaf++, to);
  }
}

}  // namespace

void ImportedState::ReleasePages() const {
  for (const auto& file : files) file->Release(0, file->bytes().size());
}

Result<StateDict> JoinStates(std::vector<StateDict> states, std::string_view prefix) {
  if (states.size() == 1 && prefix.empty()) return std::move(states.front());
  StateDict joined;
  if (states.size() == 1) {
    joined.tree.nodes[0].child_count = 1;
    AppendNodes(states.front(), 0, joined);
    Node& top = joined.tree.nodes[1];
    top.key_kind = KeyKind::kString;
    top.key = prefix;
    return joined;
  }
  if (!prefix.empty()) joined.root().Map(prefix);
  const size_t target = prefix.empty() ? 0 : 1;
  for (const StateDict& state : states) {
    const Node& root = state.tree.nodes.front();
    if (!IsMapping(root.kind)) {
      return Fail(ErrorCode::kInvalidArgument,
                  "several files can be joined only if each of them holds a dict; give one file");
    }
    joined.tree.nodes[target].child_count += root.child_count;
    AppendNodes(state, 1, joined);
  }
  return joined;
}

}  // namespace cairn::core
