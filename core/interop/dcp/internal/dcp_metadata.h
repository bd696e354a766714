#pragma once
/// What the `.metadata` file of a torch.distributed.checkpoint directory contains
/// (torch/distributed/checkpoint/{metadata,filesystem}.py describe its classes).

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// A tensor that is cut into boxes.
struct DcpTensor {
  DType dtype = DType::kUnknown;
  Shape shape;
  std::vector<Box> chunks;
  friend bool operator==(const DcpTensor&, const DcpTensor&) = default;
};

/// Keys of dicts and indices of lists, from the root to a value.
using DcpPath = std::vector<std::variant<std::string, uint64_t>>;

struct DcpItem {
  std::string key;                  // flat: the path's elements, joined by "."
  std::optional<DcpTensor> tensor;  // nothing for a pickled value
  DcpPath path;                     // in the nested state; empty if the state was saved flat
  friend bool operator==(const DcpItem&, const DcpItem&) = default;
};

/// The bytes of a chunk or value.
struct DcpLocation {
  std::string file;  // a name in the directory of `.metadata`
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  friend bool operator==(const DcpLocation&, const DcpLocation&) = default;
};

/// Key of an item, and the offsets of the chunk; a value has no offsets.
using DcpLocationKey = std::pair<std::string, std::optional<std::vector<uint64_t>>>;

struct DcpMetadata {
  std::vector<DcpItem> items;  // in the order in which they were planned
  std::map<DcpLocationKey, DcpLocation> locations;
  friend bool operator==(const DcpMetadata&, const DcpMetadata&) = default;
};

}  // namespace cairn::core::internal
