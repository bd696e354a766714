#pragma once
/// The reads of a load.

#include <nanobind/nanobind.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/load/load_options.h"
#include "core/step/contents.h"
#include "python/src/torch_access.h"

namespace cairn::python {

/// The reads of one load. Ownership: keeps the memory of `borrowed` alive; the caller keeps the
/// memory of all other targets alive.
struct Requests {
  std::vector<core::LoadRequest> list;
  std::vector<BorrowedTensor> borrowed;  // the leaf is the place in `list`
  /// Tensors of which this rank has a part. They refer to `shardings`.
  std::vector<core::ShardTarget> shards;
  std::deque<core::Sharding> shardings;
  /// By FQN, the ranks among which one tensor of `list` is read only once.
  std::map<std::string, std::shared_ptr<const core::DeviceMesh>> holders;
};

/// Returns a request for a complete tensor. Empty `strides` mean row-major.
core::LoadRequest WholeRequest(const core::TensorInfo& info, std::vector<uint64_t> strides,
                               std::byte* data, int device = core::kHostDevice);

}  // namespace cairn::python
