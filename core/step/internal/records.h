#pragma once
/// Records of tensors and chunks as core reads and writes them: nothing is used unverified, and
/// every error names the key. Threads: all functions are pure.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/step/contents.h"


namespace cairn::core::internal {

/// Encodes all of `info` but its FQN, which is the key.
std::vector<std::byte> EncodeTensor(const TensorInfo& info);

/// The TensorRecord of `fqn`. kDataLoss: damaged, or sizes that do not agree with each other.
/// kUnimplemented: a newer version, or a dtype that this build does not know.
Result<TensorInfo> DecodeTensor(std::string_view fqn, std::span<const std::byte> record);

/// A ChunkRecord and the FQN and offsets of its key. Checks all that needs no TensorRecord.
struct DecodedChunk {
  std::string_view fqn;  // borrows the key
  ChunkInfo info;
};
Result<DecodedChunk> DecodeChunk(std::string_view key, std::span<const std::byte> record);

/// kDataLoss: the chunk does not fit into the tensor, or its length is not that of its box.
Result<void> CheckChunk(const TensorInfo& tensor, const ChunkInfo& chunk);

/// Where the box begins in the row-major payload of the whole tensor, if it is one run of it.
std::optional<uint64_t> RunOffsetBytes(DType dtype, std::span<const uint64_t> shape,
                                       const Box& box);

/// "[0, 4096]"
std::string FormatNumbers(std::span<const uint64_t> numbers);

}  // namespace cairn::core::internal
