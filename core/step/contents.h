#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The contents of a step: its tensors, chunks and values, as their records describe them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "core/state_dict/value.h"
#include "core/tensor/tensor.h"
#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/base/step_info.h"

namespace cairn::core {

struct TensorInfo {
  std::string fqn;
  DType dtype = DType::kUnknown;
  Shape shape;
  uint64_t nbytes = 0;
  uint64_t chunk_count = 0;
  /// The FQN of the tensor that holds the bytes, if this tensor is an alias. Element 0 is at
  /// `alias_offset_bytes` of the owner's row-major payload; `alias_strides` has one stride per
  /// dimension, in elements.
  std::optional<std::string> alias_of;
  uint64_t alias_offset_bytes = 0;
  std::vector<uint64_t> alias_strides;
  // Storage that only aliases refer to, or the bytes of the value of the same FQN; not a leaf.
  bool hidden = false;

  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct ChunkInfo {
  Box box;                         // in the tensor
  kv::Extents extents;             // its bytes, or an earlier version if it has deltas
  std::vector<kv::Extent> deltas;  // each leads from one version to the next
  kv::Digest digest;
  uint64_t since_step = 0;                        // the last step that wrote bytes of this chunk
  std::optional<kv::ChunkStatistics> statistics;  // empty: the save did not compute them

  uint64_t length_bytes() const { return extents.length_bytes(); }
  /// Everything that is stored of the chunk.
  kv::ChunkExtents stored() const;
  /// The record of a step that has the same chunk.
  kv::ChunkEntry entry() const;
};

struct ValueInfo {
  std::string fqn;
  Value value;
};

/// Returns whether the tensor has the bytes of the ChunkedValue of the same FQN.
bool HasBytesOf(const TensorInfo& tensor, const ValueInfo& value);

/// Called with one key after another. An error ends the listing.
using TensorVisitor = std::function<Result<void>(const TensorInfo&)>;
using ValueVisitor = std::function<Result<void>(const ValueInfo&)>;
/// Called with the index of a tensor and one of its chunks.
using ChunkVisitor = std::function<Result<void>(size_t tensor, const ChunkInfo&)>;

/// The contents of one step, or the part that patterns selected. Payload is not included.
struct Contents {
  kv::StepInfo step;
  StateTree tree;                   // pruned to the selection
  std::vector<TensorInfo> tensors;  // key order; includes hidden ones that a selected leaf needs
  std::vector<ValueInfo> values;    // key order
  // Whether a selection was made of a step that has escaped keys: a leaf that is not in `tree` may
  // have the same texts as one that is.
  bool may_lack_equal_texts = false;
};

// Tensors that are longer than what is stored of them, because they repeat elements of another
// one, as those that expand() returns do.

/// A tensor that repeats its elements in memory, as expand() does, is stored as an alias if it is
/// longer than its memory by more than this. Exports refuse tensors that are.
inline constexpr uint64_t kMaxRepeatedBytes = uint64_t{1} << 30;

/// kResourceExhausted: `tensors` repeat elements of those whose memory they share, as expand()
/// does, and are more than kMaxRepeatedBytes longer than these. Without this limit, a record of a
/// few bytes could occupy a reader for years, or fill its disk.
Result<void> CheckRepeats(std::span<const TensorInfo> tensors);

}  // namespace cairn::core
