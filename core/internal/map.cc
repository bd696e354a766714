// Map: the bytes of a tensor inside a mapped segment, where they lie in one run.

#include <fmt/format.h>

#include "core/internal/load.h"

namespace cairn::core::internal {
namespace {

// Payload [begin_bytes, end_bytes) of `owner` and the chunks that hold it.
struct Run {
  std::vector<ChunkInfo> chunks;
  uint64_t first_chunk_bytes = 0;  // payload position of chunks[0]
};

// The chunks of the range if they lie one behind another in one segment.
Result<std::optional<Run>> FindRun(const StepView& view, const TensorInfo& owner,
                                   uint64_t begin_bytes, uint64_t end_bytes) {
  Run run;
  bool consecutive = true;
  uint64_t position = 0;
  CAIRN_TRY(ForEachChunk(view, owner, [&](ChunkInfo chunk) -> Result<void> {
    const uint64_t at = position;
    position += chunk.extent.length_bytes;
    if (RunOffsetBytes(owner.dtype, owner.shape, chunk.box) != at) consecutive = false;
    if (!consecutive || position <= begin_bytes || at >= end_bytes) return {};
    if (run.chunks.empty()) {
      run.first_chunk_bytes = at;
    } else {
      const kv::Extent& last = run.chunks.back().extent;
      consecutive = chunk.extent.segment_id == last.segment_id &&
                    chunk.extent.offset_bytes == last.offset_bytes + last.length_bytes;
    }
    run.chunks.push_back(std::move(chunk));
    return {};
  }));
  if (!consecutive) return std::nullopt;
  if (position != owner.nbytes) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the index's chunks do not cover the tensor exactly once",
                      .key = owner.fqn,
                      .step = view.step.step});
  }
  return run;
}

// Checks the payload of one chunk that is mapped at `bytes`.
Result<void> CheckPages(const StepView& view, const std::string& fqn, const ChunkInfo& chunk,
                        std::span<const std::byte> bytes) {
  std::vector<uint64_t> leaves;
  kv::AppendLeaves(bytes, leaves);
  if (kv::RootDigest(leaves, bytes.size()) == chunk.digest) return {};
  return Fail(DamagedBytes(view, fqn, chunk,
                           fmt::format("chunk {} does not match its digest; the bytes on disk have "
                                       "changed",
                                       FormatNumbers(chunk.box.offsets)),
                           chunk.extent.offset_bytes));
}

}  // namespace

Result<std::optional<MappedTensor>> RunMap(const StepView& view, const std::string& fqn,
                                           bool verify) {
  CAIRN_TRY_ASSIGN(const TensorInfo tensor, FindTensor(view, fqn));
  if (tensor.nbytes == 0) return MappedTensor{};
  TensorInfo owner = tensor;
  uint64_t begin = 0;
  if (tensor.alias_of) {
    CAIRN_TRY_ASSIGN(owner, FindOwner(view, tensor));
    if (!IsContiguous(tensor.shape, tensor.alias_strides)) return std::nullopt;
    begin = tensor.alias_offset_bytes;
  }
  CAIRN_TRY_ASSIGN(const std::optional<Run> run,
                   FindRun(view, owner, begin, begin + tensor.nbytes));
  if (!run) return std::nullopt;
  const kv::Extent& first = run->chunks.front().extent;
  const kv::Extent& last = run->chunks.back().extent;
  CAIRN_TRY_ASSIGN(auto mapping, view.snapshot->Map(first.segment_id));
  if (last.offset_bytes + last.length_bytes > mapping->bytes().size()) {
    return Fail(DamagedBytes(view, fqn, run->chunks.back(), "the segment is too short for a chunk",
                             mapping->bytes().size()));
  }
  for (const ChunkInfo& chunk : run->chunks) {
    if (!verify) break;
    CAIRN_TRY(
        CheckPages(view, owner.fqn, chunk,
                   mapping->bytes().subspan(chunk.extent.offset_bytes, chunk.extent.length_bytes)));
  }
  const auto bytes = mapping->bytes().subspan(first.offset_bytes + (begin - run->first_chunk_bytes),
                                              tensor.nbytes);
  return MappedTensor{.mapping = std::move(mapping), .bytes = bytes};
}

}  // namespace cairn::core::internal
