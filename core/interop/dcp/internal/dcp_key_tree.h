#pragma once
/// The nested state that the items of a torch.distributed.checkpoint came from.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/interop/dcp/internal/dcp_metadata.h"
#include "kv/error.h"

namespace cairn::core::internal {

/// Ownership: borrows the items. Threads: immutable.
class DcpKeyTree {
 public:
  using Key = std::variant<std::string, uint64_t>;
  struct Node {
    std::vector<std::pair<Key, size_t>> children;  // key and node, in the order of the items
    std::map<Key, size_t> by_key;
    const DcpItem* item = nullptr;  // null unless the node is a leaf
  };

  /// Builds the tree from the paths of the items; an item without a path is a child of the root.
  /// kDataLoss: two items have the same path, or one is inside the other; the error names one.
  static Result<DcpKeyTree> Build(const DcpMetadata& metadata);

  const Node& root() const { return nodes_.front(); }
  /// Requires an index from Node::children.
  const Node& node(size_t index) const { return nodes_[index]; }

  /// Returns the children in order if their keys are 0, 1, 2, ..., and nothing otherwise. A node
  /// without children is an empty list.
  static std::optional<std::vector<size_t>> FindElements(const Node& node);

 private:
  size_t FindOrAddChild(size_t parent, const Key& key);

  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace cairn::core::internal
