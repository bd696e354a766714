// 1. The tensors, their owners and the chunks of the owners are found in key order.
// 2. For each tensor, the range of its owner's chunks that contains its bytes is determined, if
//    these chunks are adjacent in one segment.
// 3. Every segment with such a range is mapped once. MapCheck checks the chunks in file order.

#include "core/load/internal/map_tensors.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/load/internal/mapped_check.h"
#include "core/step/contents.h"
#include "core/step/internal/owners.h"
#include "kv/base/mapping.h"

namespace cairn::core {
namespace internal {
namespace {

// The chunks of a tensor that owns bytes.
struct OwnerChunks {
  std::vector<ChunkInfo> chunks;
  std::vector<uint64_t> begins_bytes;  // offset of each chunk in the row-major payload
  uint64_t total_bytes = 0;
  bool is_row_major = true;  // the chunks are consecutive ranges of the row-major payload
};

// Chunks that contain a range of a payload, with one extent each and no deltas.
struct ChunkRange {
  std::span<const ChunkInfo> chunks;
  uint64_t skipped_bytes = 0;  // bytes of the first chunk before the range
};

bool Follows(const kv::Extent& extent, const kv::Extent& before) {
  return extent.segment_id == before.segment_id &&
         extent.offset_bytes == before.offset_bytes + before.length_bytes;
}

Result<std::vector<OwnerChunks>> FindOwnerChunks(const StepView& view,
                                                 std::span<const TensorInfo> owners) {
  std::vector<OwnerChunks> owner_chunks(owners.size());
  CAIRN_TRY(ForEachChunkOf(view, owners, [&](size_t i, ChunkInfo chunk) -> Result<void> {
    OwnerChunks& owner = owner_chunks[i];
    if (ContiguousOffsetBytes(owners[i].dtype, owners[i].shape, chunk.box) != owner.total_bytes) {
      owner.is_row_major = false;
    }
    owner.begins_bytes.push_back(owner.total_bytes);
    owner.total_bytes += chunk.length_bytes();
    owner.chunks.push_back(std::move(chunk));
    return {};
  }));
  for (size_t i = 0; i < owners.size(); ++i) {
    if (!owner_chunks[i].is_row_major || owner_chunks[i].total_bytes == owners[i].nbytes) continue;
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the step's chunks do not cover the tensor exactly once",
                      .key = owners[i].fqn,
                      .step = view.step.step});
  }
  return owner_chunks;
}

// Returns the chunks that contain a range of the owner's payload, if they are adjacent in one
// segment. Requires a range that is not empty and is inside the payload.
std::optional<ChunkRange> FindChunkRange(const OwnerChunks& owner, uint64_t begin_bytes,
                                         uint64_t length_bytes) {
  if (!owner.is_row_major) return std::nullopt;
  const auto& begins = owner.begins_bytes;
  const auto first = std::ranges::upper_bound(begins, begin_bytes) - begins.begin() - 1;
  const auto end = std::ranges::lower_bound(begins, begin_bytes + length_bytes) - begins.begin();
  const std::span<const ChunkInfo> chunks(owner.chunks.begin() + first, owner.chunks.begin() + end);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].extents.size() > 1 || !chunks[i].deltas.empty()) return std::nullopt;
    if (i > 0 && !Follows(chunks[i].extents.front(), chunks[i - 1].extents.front())) {
      return std::nullopt;
    }
  }
  return ChunkRange{.chunks = chunks,
                    .skipped_bytes = begin_bytes - begins[static_cast<size_t>(first)]};
}

// Maps tensors one by one. Immovable because of its references.
class Mapper {
 public:
  Mapper(const StepView& view, std::span<const TensorInfo> owners,
         std::span<const OwnerChunks> owner_chunks)
      : view_(view), owners_(owners), owner_chunks_(owner_chunks) {}
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
    const auto range = FindChunkRange(owner_chunks_[static_cast<size_t>(&owner - owners_.data())],
                                      begin, tensor.nbytes);
    if (!range) return std::nullopt;
    const kv::Extent& first = range->chunks.front().extents.front();
    const kv::Extent& last = range->chunks.back().extents.front();
    CAIRN_TRY_ASSIGN(auto mapping, MapSegment(first.segment_id));
    const std::span<const std::byte> segment = mapping->bytes();
    if (last.offset_bytes + last.length_bytes > segment.size()) {
      return Fail(DamagedBytes(view_, tensor.fqn, last.segment_id,
                               "the segment is too short for a chunk", segment.size()));
    }
    AddChunks(owner, *range, *mapping);
    const auto bytes = segment.subspan(first.offset_bytes + range->skipped_bytes, tensor.nbytes);
    return MappedTensor{.mapping = std::move(mapping), .bytes = bytes};
  }

  /// Returns the chunks of all tensors that were mapped, without duplicates.
  std::vector<MappedChunk> TakeChunks() { return std::move(chunks_); }

  std::vector<std::shared_ptr<const kv::Mapping>> mappings() const {
    std::vector<std::shared_ptr<const kv::Mapping>> all;
    for (const auto& [segment_id, mapping] : mappings_) all.push_back(mapping);
    return all;
  }

 private:
  Result<std::shared_ptr<const kv::Mapping>> MapSegment(uint64_t segment_id) {
    auto& mapping = mappings_[segment_id];
    if (!mapping) {
      CAIRN_TRY_ASSIGN(mapping, view_.snapshot->Map(segment_id));
    }
    return mapping;
  }

  void AddChunks(const TensorInfo& owner, const ChunkRange& range, const kv::Mapping& mapping) {
    for (const ChunkInfo& chunk : range.chunks) {
      if (seen_.insert(&chunk).second) {
        chunks_.push_back({.fqn = &owner.fqn, .chunk = &chunk, .mapping = &mapping});
      }
    }
  }

  const StepView& view_;
  const std::span<const TensorInfo> owners_;
  const std::span<const OwnerChunks> owner_chunks_;
  std::map<uint64_t, std::shared_ptr<const kv::Mapping>> mappings_;  // by segment
  std::set<const ChunkInfo*> seen_;                                  // aliases share chunks
  std::vector<MappedChunk> chunks_;
};

}  // namespace
}  // namespace internal

// Owns what the chunks borrow.
struct MapCheck::Chunks {
  internal::StepView view;
  std::vector<TensorInfo> owners;
  std::vector<internal::OwnerChunks> owner_chunks;
  std::vector<std::shared_ptr<const kv::Mapping>> mappings;
  std::vector<internal::MappedChunk> chunks;  // without duplicates
};

MapCheck::MapCheck(std::unique_ptr<const Chunks> chunks) : chunks_(std::move(chunks)) {}
MapCheck::~MapCheck() = default;

Result<void> MapCheck::Run(const Progress& progress) const {
  return internal::CheckMapped(chunks_->view, chunks_->chunks, progress);
}

namespace internal {

Result<UncheckedMap> RunMap(StepView view, std::span<const std::string> fqns) {
  auto checked = std::make_unique<MapCheck::Chunks>();
  checked->view = std::move(view);
  CAIRN_TRY_ASSIGN(const auto tensors, FindNamed(checked->view, {fqns.begin(), fqns.end()}));
  CAIRN_TRY_ASSIGN(checked->owners, FindOwners(checked->view, tensors));
  CAIRN_TRY_ASSIGN(checked->owner_chunks, FindOwnerChunks(checked->view, checked->owners));
  Mapper mapper(checked->view, checked->owners, checked->owner_chunks);
  UncheckedMap mapped;
  mapped.tensors.resize(fqns.size());
  for (size_t i = 0; i < fqns.size(); ++i) {
    CAIRN_TRY_ASSIGN(mapped.tensors[i], mapper.Map(ByName(tensors, fqns[i])));
  }
  checked->chunks = mapper.TakeChunks();
  checked->mappings = mapper.mappings();
  mapped.check = std::make_shared<MapCheck>(std::move(checked));
  return mapped;
}

}  // namespace internal
}  // namespace cairn::core
