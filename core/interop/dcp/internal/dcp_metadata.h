#pragma once
/// The `.metadata` of a torch.distributed.checkpoint directory, read without unpickling it, and
/// written.
///
/// Only classes of torch.distributed.checkpoint itself, torch.Size, dtypes and paths may be named
/// in it (torch/distributed/checkpoint/{metadata,filesystem}.py describe them).

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// A tensor, cut into boxes.
struct DcpTensor {
  DType dtype = DType::kUnknown;
  Shape shape;
  std::vector<Box> chunks;
};

/// Keys of dicts and indices of lists.
using DcpPath = std::vector<std::variant<std::string, uint64_t>>;

struct DcpItem {
  std::string key;                  // flat
  std::optional<DcpTensor> tensor;  // nothing for a pickled value
  /// Where it stands in the nested state. Nothing if the state was saved flat.
  DcpPath path;
};

/// Where the bytes of a chunk or value are.
struct DcpPlace {
  std::string file;  // a name beside `.metadata`
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

struct DcpMetadata {
  std::vector<DcpItem> items;  // as they were planned
  /// By key and offsets of the chunk; a value has no offsets.
  std::map<std::pair<std::string, std::optional<std::vector<uint64_t>>>, DcpPlace> places;
};

/// kDataLoss: no such metadata, or damaged. kUnimplemented: it names a class that has no business
/// there, or was written by another storage than FileSystemWriter, or with transforms
/// (compression). Memory: some times the pickle's.
Result<DcpMetadata> ParseDcpMetadata(std::span<const std::byte> pickle);

/// The pickle that torch makes of it, for tensors on the CPU that need no gradient; without the
/// place and the name of the save. Requires a place for every chunk and value.
std::string WriteDcpMetadata(const DcpMetadata& metadata);

}  // namespace cairn::core::internal
