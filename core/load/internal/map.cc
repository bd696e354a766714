// Map: the bytes of tensors inside mapped segments, where they lie in one run.
//
// 1. The tensors, those that hold their bytes and the chunks of these are found in key order.
// 2. A tensor's run is the chunks that hold its payload, if they lie one behind another.
// 3. Every segment that has a run is mapped once; the runs' chunks are checked in file order.

#include "core/load/internal/map.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/load/internal/mapped_check.h"
#include "core/step/contents.h"
#include "core/step/internal/owners.h"
#include "kv/mapping.h"

namespace cairn::core::internal {
namespace {

// The chunks of a tensor that holds bytes.
struct Payload {
  std::vector<ChunkInfo> chunks;
  std::vector<uint64_t> begins_bytes;  // of the chunks, in the row-major payload
  uint64_t total_bytes = 0;
  bool is_row_major = true;  // the chunks are consecutive runs of the row-major payload
};

// What holds bytes [begin_bytes, ...) of a payload: chunks of one extent each.
struct Run {
  std::span<const ChunkInfo> chunks;
  uint64_t skipped_bytes = 0;  // of the first chunk
};

bool Follows(const kv::Extent& extent, const kv::Extent& before) {
  return extent.segment_id == before.segment_id &&
         extent.offset_bytes == before.offset_bytes + before.length_bytes;
}

Result<std::vector<Payload>> FindPayloads(const StepView& view,
                                          std::span<const TensorInfo> owners) {
  std::vector<Payload> payloads(owners.size());
  CAIRN_TRY(ForEachChunkOf(view, owners, [&](size_t i, ChunkInfo chunk) -> Result<void> {
    Payload& payload = payloads[i];
    if (ContiguousOffsetBytes(owners[i].dtype, owners[i].shape, chunk.box) != payload.total_bytes) {
      payload.is_row_major = false;
    }
    payload.begins_bytes.push_back(payload.total_bytes);
    payload.total_bytes += chunk.length_bytes();
    payload.chunks.push_back(std::move(chunk));
    return {};
  }));
  for (size_t i = 0; i < owners.size(); ++i) {
    if (!payloads[i].is_row_major || payloads[i].total_bytes == owners[i].nbytes) continue;
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the index's chunks do not cover the tensor exactly once",
                      .key = owners[i].fqn,
                      .step = view.step.step});
  }
  return payloads;
}

// Requires a part that is not empty and lies inside the payload.
std::optional<Run> FindRun(const Payload& payload, uint64_t begin_bytes, uint64_t length_bytes) {
  if (!payload.is_row_major) return std::nullopt;
  const auto& begins = payload.begins_bytes;
  const auto first = std::ranges::upper_bound(begins, begin_bytes) - begins.begin() - 1;
  const auto end = std::ranges::lower_bound(begins, begin_bytes + length_bytes) - begins.begin();
  const std::span<const ChunkInfo> chunks(payload.chunks.begin() + first,
                                          payload.chunks.begin() + end);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].extents.size() > 1) return std::nullopt;
    if (i > 0 && !Follows(chunks[i].extents.front(), chunks[i - 1].extents.front())) {
      return std::nullopt;
    }
  }
  return Run{.chunks = chunks, .skipped_bytes = begin_bytes - begins[static_cast<size_t>(first)]};
}

// The batch at work. Immovable for its references.
class Mapper {
 public:
  Mapper(const StepView& view, std::span<const TensorInfo> owners,
         std::span<const Payload> payloads)
      : view_(view), owners_(owners), payloads_(payloads) {}
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;

  Result<std::optional<MappedTensor>> Map(const TensorInfo& tensor) {
    if (tensor.nbytes == 0) return MappedTensor{};
    const TensorInfo& owner = ByName(owners_, tensor.alias_of.value_or(tensor.fqn));
    if (tensor.alias_of) {
      CAIRN_TRY(CheckAlias(tensor, owner));
      if (!IsContiguous(tensor.shape, tensor.alias_strides)) return std::nullopt;
    }
    const uint64_t begin = tensor.alias_of ? tensor.alias_offset_bytes : 0;
    const auto run =
        FindRun(payloads_[static_cast<size_t>(&owner - owners_.data())], begin, tensor.nbytes);
    if (!run) return std::nullopt;
    const kv::Extent& first = run->chunks.front().extents.front();
    const kv::Extent& last = run->chunks.back().extents.front();
    CAIRN_TRY_ASSIGN(auto mapping, MapSegment(first.segment_id));
    const std::span<const std::byte> segment = mapping->bytes();
    if (last.offset_bytes + last.length_bytes > segment.size()) {
      return Fail(DamagedBytes(view_, tensor.fqn, last.segment_id,
                               "the segment is too short for a chunk", segment.size()));
    }
    AddChunks(owner, *run, *mapping);
    const auto bytes = segment.subspan(first.offset_bytes + run->skipped_bytes, tensor.nbytes);
    return MappedTensor{.mapping = std::move(mapping), .bytes = bytes};
  }

  /// The chunks of all runs, once each.
  std::vector<MappedChunk> TakeChunks() { return std::move(chunks_); }

 private:
  Result<std::shared_ptr<const kv::Mapping>> MapSegment(uint64_t segment_id) {
    auto& mapping = mappings_[segment_id];
    if (!mapping) {
      CAIRN_TRY_ASSIGN(mapping, view_.snapshot->Map(segment_id));
    }
    return mapping;
  }

  void AddChunks(const TensorInfo& owner, const Run& run, const kv::Mapping& mapping) {
    for (const ChunkInfo& chunk : run.chunks) {
      if (seen_.insert(&chunk).second) {
        chunks_.push_back({.fqn = &owner.fqn, .chunk = &chunk, .mapping = &mapping});
      }
    }
  }

  const StepView& view_;
  const std::span<const TensorInfo> owners_;
  const std::span<const Payload> payloads_;
  std::map<uint64_t, std::shared_ptr<const kv::Mapping>> mappings_;  // by segment
  std::set<const ChunkInfo*> seen_;                                  // aliases share chunks
  std::vector<MappedChunk> chunks_;
};

}  // namespace

Result<std::vector<std::optional<MappedTensor>>> RunMap(const StepView& view,
                                                        std::span<const std::string> fqns,
                                                        bool verify, const Progress& progress) {
  CAIRN_TRY_ASSIGN(const auto tensors, FindNamed(view, {fqns.begin(), fqns.end()}));
  CAIRN_TRY_ASSIGN(const auto owners, FindOwners(view, tensors));
  CAIRN_TRY_ASSIGN(const auto payloads, FindPayloads(view, owners));
  Mapper mapper(view, owners, payloads);
  std::vector<std::optional<MappedTensor>> mapped(fqns.size());
  for (size_t i = 0; i < fqns.size(); ++i) {
    CAIRN_TRY_ASSIGN(mapped[i], mapper.Map(ByName(tensors, fqns[i])));
  }
  if (verify) CAIRN_TRY(CheckMapped(view, mapper.TakeChunks(), progress));
  return mapped;
}

}  // namespace cairn::core::internal
