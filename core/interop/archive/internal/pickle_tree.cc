#include "core/interop/archive/internal/pickle_tree.h"

#include <bit>

namespace cairn::core::internal {

double PickleTree::real(PickleRef ref) const {
  return std::bit_cast<double>(DataOf(ref, PickleKind::kFloat));
}

std::span<const std::byte> PickleTree::bytes(PickleRef ref) const {
  const Node& node = nodes_[ref];
  CAIRN_CHECK(node.kind == PickleKind::kBytes || node.kind == PickleKind::kText ||
              node.kind == PickleKind::kLong);
  return pickle_.subspan(node.data, node.count);
}

std::string_view PickleTree::text(PickleRef ref) const {
  CAIRN_CHECK(kind(ref) == PickleKind::kText);
  const auto data = bytes(ref);
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

std::span<const PickleRef> PickleTree::children(PickleRef ref) const {
  const Node& node = nodes_[ref];
  if (node.kind == PickleKind::kTuple) {
    return std::span(tuple_elements_).subspan(node.data, node.count);
  }
  CAIRN_CHECK(node.kind == PickleKind::kList || node.kind == PickleKind::kDict ||
              node.kind == PickleKind::kSet);
  return containers_[node.data];
}

}  // namespace cairn::core::internal
