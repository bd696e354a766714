#include "core/interop/dcp/internal/dcp_key_tree.h"

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Conflict(const std::string& key) {
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = "the checkpoint's metadata has two items with the same path, or one "
                               "inside another",
                    .key = key});
}

}  // namespace

Result<DcpKeyTree> DcpKeyTree::Build(const DcpMetadata& metadata) {
  DcpKeyTree tree;
  for (const DcpItem& item : metadata.items) {
    size_t at = 0;
    if (item.path.empty()) {
      at = tree.FindOrAddChild(0, item.key);
    } else {
      for (const Key& key : item.path) at = tree.FindOrAddChild(at, key);
    }
    if (tree.nodes_[at].item != nullptr) return Conflict(item.key);
    tree.nodes_[at].item = &item;
  }
  for (const Node& node : tree.nodes_) {
    if (node.item != nullptr && !node.children.empty()) return Conflict(node.item->key);
  }
  return tree;
}

std::optional<std::vector<size_t>> DcpKeyTree::FindElements(const Node& node) {
  std::vector<size_t> elements;
  for (const auto& [key, child] : node.by_key) {  // the map sorts numbers
    const uint64_t* const index = std::get_if<uint64_t>(&key);
    if (index == nullptr || *index != elements.size()) return std::nullopt;
    elements.push_back(child);
  }
  return elements;
}

size_t DcpKeyTree::FindOrAddChild(size_t parent, const Key& key) {
  const auto [found, inserted] = nodes_[parent].by_key.try_emplace(key, nodes_.size());
  const size_t child = found->second;
  if (inserted) {
    nodes_[parent].children.emplace_back(key, child);
    nodes_.emplace_back();
  }
  return child;
}

}  // namespace cairn::core::internal
