#pragma once
/// Cuts a nested state into items as torch.distributed.checkpoint does (flatten_state_dict in
/// torch/distributed/checkpoint/_nested_dict.py).

#include <cstdint>
#include <vector>

#include "core/interop/dcp/internal/dcp_metadata.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// A tensor, or a value that is pickled with everything below it.
struct DcpTreeItem {
  uint32_t node = 0;  // index in the tree
  bool is_tensor = false;
  std::string key;  // the path's elements, joined by "."
  DcpPath path;
};

/// Returns the items in the order of the tree. Dicts are cut, and their keys become strings; lists
/// are cut if one of their elements is a tensor, a dict, or a list that is cut. Everything else is
/// an item: plain values, other lists, tuples. Empty dicts disappear. Numpy arrays count as
/// tensors. kInvalidArgument: the root is not a dict, or two items have the same key, which the
/// error names. kDataLoss: child counts do not add up, or the nesting is deeper than kMaxTreeDepth.
Result<std::vector<DcpTreeItem>> CutIntoDcpItems(const StateTree& tree);

}  // namespace cairn::core::internal
