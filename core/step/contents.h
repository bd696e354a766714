#pragma once
/// What a step holds: its tensors, chunks and values, as their records say.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "core/state_dict/value.h"
#include "core/tensor/tensor.h"
#include "kv/digest.h"
#include "kv/extents.h"
#include "kv/step_info.h"

namespace cairn::core {

struct TensorInfo {
  std::string fqn;
  DType dtype = DType::kUnknown;
  Shape shape;
  uint64_t nbytes = 0;
  uint64_t chunk_count = 0;
  /// Set when the bytes are those of another tensor: element 0 lies alias_offset_bytes into its
  /// row-major payload, and alias_strides (elements) lead on from there.
  std::optional<std::string> alias_of;
  uint64_t alias_offset_bytes = 0;
  std::vector<uint64_t> alias_strides;
  bool hidden = false;  // storage that only aliases refer to; no leaf of its own
};

struct ChunkInfo {
  Box box;
  kv::Extents extents;
  kv::Digest digest;
  uint64_t since_step = 0;  // that wrote the bytes, or the last of them

  uint64_t length_bytes() const { return extents.length_bytes(); }
};

struct ValueInfo {
  std::string fqn;
  Value value;
};

/// What one step holds, or the part of it that patterns selected. No payload has been read.
struct Contents {
  kv::StepInfo step;
  StateTree tree;                   // pruned to the selection
  std::vector<TensorInfo> tensors;  // key order; hidden ones too, if a selected tensor needs them
  std::vector<ValueInfo> values;    // key order
};

}  // namespace cairn::core
