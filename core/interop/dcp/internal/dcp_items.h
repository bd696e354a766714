#pragma once
/// How torch.distributed.checkpoint cuts a nested state into items (flatten_state_dict in
/// torch/distributed/checkpoint/_nested_dict.py).

#include <cstdint>
#include <vector>

#include "core/interop/dcp/internal/dcp_metadata.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// A tensor, or a value with all below it, which is pickled whole.
struct DcpTreeItem {
  uint32_t node = 0;  // of the tree
  bool is_tensor = false;
  std::string key;  // the path's elements, joined by "."
  DcpPath path;
};

/// Dicts are cut, their keys become strings; so are lists with a tensor, a dict or such a list
/// among their elements. All else is an item: plain values, other lists, tuples. Tree order. Empty
/// dicts vanish. Numpy arrays count as tensors. kInvalidArgument: the root is no dict, or two items
/// get one key; names it. kDataLoss: child counts do not add up, or a nesting deeper than
/// kMostTreeDepth.
Result<std::vector<DcpTreeItem>> CutIntoDcpItems(const StateTree& tree);

}  // namespace cairn::core::internal
