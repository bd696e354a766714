// A backward pass over the preorder finds which nodes are cut and where they end. A forward pass
// collects the items.

#include "core/interop/dcp/internal/dcp_items.h"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <utility>

#include "core/interop/torch/internal/torch_pickler.h"

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Damaged(std::string message) {
  return Fail(ErrorCode::kDataLoss, std::move(message));
}

struct Extent {
  uint32_t end = 0;  // index after the node and everything below it
  bool is_cut = false;
};

bool Cuts(const Node& child, const Extent& extent) {
  return IsTensor(child.kind) || IsMapping(child.kind) ||
         (child.kind == NodeKind::kList && extent.is_cut);
}

// Returns the extent of every node. Not recursive: children follow their parents.
Result<std::vector<Extent>> FindExtents(const StateTree& tree) {
  const auto& nodes = tree.nodes;
  std::vector<Extent> extents(nodes.size());
  std::vector<uint32_t> roots;  // of the complete subtrees seen so far, the first one last
  for (auto i = static_cast<uint32_t>(nodes.size()); i-- > 0;) {
    const Node& node = nodes[i];
    if (node.child_count > roots.size()) return Damaged("the step's structure is cut off");
    extents[i] = {.end = i + 1, .is_cut = IsMapping(node.kind)};
    for (uint32_t n = 0; n < node.child_count; ++n) {
      const uint32_t child = roots.back();
      roots.pop_back();
      extents[i].end = extents[child].end;
      if (node.kind == NodeKind::kList && Cuts(nodes[child], extents[child])) {
        extents[i].is_cut = true;
      }
    }
    roots.push_back(i);
  }
  if (roots.size() != 1) return Damaged("the step's structure has no single root");
  return extents;
}

class Cutter {
 public:
  Cutter(const StateTree& tree, const std::vector<Extent>& extents)
      : nodes_(tree.nodes), extents_(extents) {}

  Result<std::vector<DcpTreeItem>> Cut() {
    CAIRN_TRY(Visit(0, {}));
    return std::move(items_);
  }

 private:
  Result<void> Visit(uint32_t at, const std::string& key) {
    if (!extents_[at].is_cut) return AddItem(at, key);
    if (path_.size() == kMaxTreeDepth) {
      return Damaged(
          fmt::format("the step's structure is nested deeper than {} levels", kMaxTreeDepth));
    }
    const bool is_list = nodes_[at].kind == NodeKind::kList;
    uint32_t child = at + 1;
    for (uint32_t n = 0; n < nodes_[at].child_count; ++n) {
      const std::string name = is_list ? fmt::format("{}", n) : nodes_[child].key;
      if (is_list) {
        path_.emplace_back(uint64_t{n});
      } else {
        path_.emplace_back(name);
      }
      CAIRN_TRY(Visit(child, at == 0 ? name : key + "." + name));
      path_.pop_back();
      child = extents_[child].end;
    }
    return {};
  }

  Result<void> AddItem(uint32_t at, const std::string& key) {
    if (!keys_.insert(key).second) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message =
                            "two values have this key in torch.distributed.checkpoint, which "
                            "joins keys with '.'; leave one out with a pattern",
                        .key = key});
    }
    items_.push_back(
        {.node = at, .is_tensor = IsTensor(nodes_[at].kind), .key = key, .path = path_});
    return {};
  }

  const std::vector<Node>& nodes_;
  const std::vector<Extent>& extents_;
  DcpPath path_;
  std::unordered_set<std::string> keys_;
  std::vector<DcpTreeItem> items_;
};

}  // namespace

Result<std::vector<DcpTreeItem>> CutIntoDcpItems(const StateTree& tree) {
  CAIRN_TRY_ASSIGN(const std::vector<Extent> extents, FindExtents(tree));
  if (!IsMapping(tree.nodes[0].kind)) {
    return Fail(ErrorCode::kInvalidArgument,
                "the step is not a dict, and torch.distributed.checkpoint saves only dicts");
  }
  return Cutter(tree, extents).Cut();
}

}  // namespace cairn::core::internal
