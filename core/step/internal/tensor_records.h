#pragma once
/// The records of tensors and chunks as core writes and reads them. Nothing is used before it is
/// verified, and every error names the key. Threads: all functions are pure.

#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/step/contents.h"

namespace cairn::core::internal {

/// Where an alias is in the tensor that holds its bytes; see TensorInfo.
struct TensorAlias {
  std::string_view owner;
  uint64_t offset_bytes = 0;
  std::span<const uint64_t> strides;
};

/// A TensorInfo whose texts and numbers are in other memory, which must outlive it.
struct TensorEntry {
  std::string_view fqn;  // in plans, NUL follows it
  std::span<const uint64_t> shape;
  uint64_t nbytes = 0;
  uint64_t chunk_count = 0;
  const TensorAlias* alias = nullptr;  // null: the tensor has bytes of its own
  DType dtype = DType::kUnknown;
  bool hidden = false;

  /// The key of the record, kv::FqnKey of the FQN. Requires a NUL after it.
  std::string_view key() const { return {fqn.data(), fqn.size() + 1}; }
};

/// `alias` is null unless the tensor is an alias. Borrows both.
inline TensorEntry EntryOf(const TensorInfo& info, const TensorAlias* alias) {
  return {.fqn = info.fqn,
          .shape = info.shape,
          .nbytes = info.nbytes,
          .chunk_count = info.chunk_count,
          .alias = alias,
          .dtype = info.dtype,
          .hidden = info.hidden};
}
/// Does not state where an alias is.
inline TensorEntry EntryOf(const TensorInfo& info) {
  static constexpr TensorAlias kSomewhere{};
  return EntryOf(info, info.alias_of ? &kSomewhere : nullptr);
}

/// Encodes TensorRecords. Cost: no allocation, and a copy of a few fields if the record before had
/// the same fields, which nearly all records of a step have. Threads: one.
class TensorEncoder {
 public:
  /// Returns a TensorRecord of everything in `tensor` except its FQN, which is the key. It is valid
  /// until the next call. Requires that the dtype is known, the sizes agree, and exactly aliases
  /// have strides; DecodeTensor checks this.
  std::span<const std::byte> Encode(const TensorEntry& tensor);
  std::span<const std::byte> Encode(const TensorInfo& info);

 private:
  void Build(const TensorEntry& tensor);

  flatbuffers::FlatBufferBuilder builder_;  // contains the last record
  // The dimensions of the last record, if all records with as many have the same fields.
  std::optional<size_t> dimensions_;
};
/// Encodes one record. See TensorEncoder.
std::vector<std::byte> EncodeTensor(const TensorInfo& info);

/// Decodes the TensorRecord of `fqn`. kDataLoss: it is damaged, or its sizes contradict each other.
/// kUnimplemented: it has a newer version, or a dtype that this build does not know.
Result<TensorInfo> DecodeTensor(std::string_view fqn, std::span<const std::byte> record);
/// Decodes it to `info`, whose memory is reused.
Result<void> DecodeTensor(std::string_view fqn, std::span<const std::byte> record,
                          TensorInfo& info);

/// A ChunkRecord with the FQN and the offsets of its key.
struct DecodedChunk {
  std::string_view fqn;  // borrows the key
  ChunkInfo info;
};
/// Decodes a ChunkRecord and checks everything that does not need the TensorRecord. kDataLoss: it
/// is damaged. kUnimplemented: it has a newer version, or an encoding that this build does not
/// know.
Result<DecodedChunk> DecodeChunk(std::string_view key, std::span<const std::byte> record);
/// Decodes it to `info`, whose memory is reused.
Result<void> DecodeChunk(std::string_view key, std::span<const std::byte> record, ChunkInfo& info);

/// Checks a chunk against its tensor. kDataLoss: its box is not inside the tensor, or its length
/// does not match its box.
Result<void> CheckChunk(const TensorEntry& tensor, const ChunkInfo& chunk);

/// Returns the offset of `box` in the row-major payload of a tensor of `shape`, if the bytes of the
/// box are contiguous in it. Requires that the box has as many dimensions as the shape.
std::optional<uint64_t> ContiguousOffsetBytes(DType dtype, std::span<const uint64_t> shape,
                                              const Box& box);

/// Formats numbers as "[0, 4096]".
std::string FormatNumbers(std::span<const uint64_t> numbers);

}  // namespace cairn::core::internal
