// Verifies the records of parts.

#include "kv/commit/internal/rank_batch.h"

#include <fmt/format.h>

#include <span>

#include "kv/base/chunk_record.h"
#include "kv/base/key.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_stream.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

void RankBatch::BeginPart(uint32_t rank) {
  rank_ = rank;
  part_segments_ = 0;
}

void RankBatch::Clear() {
  records_.Clear();
  run_ = {};
  chunks_.clear();
  boxes_.clear();
  shared_.clear();
  counts_ = {};
  live_bytes_ = {};
}

Result<void> RankBatch::Add(const TableRecord& record) {
  switch (record.column()) {
    case Column::kChunks:
      return AddChunk(record);
    case Column::kStructures:
      if (!IsHexDigits(record.key.substr(1), kSharedDigits)) {
        return Fail(ErrorCode::kDataLoss,
                    "a part refers to shared records by a key that is not a digest");
      }
      shared_.emplace_back(rank_, std::string(record.key.substr(1)));
      return {};
    case Column::kSteps: {
      CAIRN_TRY_ASSIGN(const StepInfo part, DecodeStep(record.value));
      counts_.chunks += part.chunk_count;
      counts_.reused_chunks += part.reused_chunk_count;
      counts_.written_bytes += part.written_bytes;
      return {};
    }
    case Column::kSegments:
      return AddSegment(record);
    default:
      return Fail(ErrorCode::kDataLoss,
                  fmt::format("the part of rank {} contains a record of column {}", rank_,
                              static_cast<int>(record.column())));
  }
}

Result<void> RankBatch::AddChunk(const TableRecord& record) {
  ChunkView chunk;
  CAIRN_TRY(chunk.Set(record.key.substr(1), record.value));
  const size_t dimensions = chunk.dimensions();
  const TableRecord added = records_.Add(record);
  chunks_.push_back({.rank = rank_,
                     .fqn = added.key.substr(1, chunk.fqn().size()),
                     .dimensions = dimensions,
                     .length_bytes = chunk.length_bytes()});
  boxes_.resize(boxes_.size() + 2 * dimensions);
  const auto box = std::span(boxes_).last(2 * dimensions);
  chunk.CopyOffsets(box.first(dimensions));
  chunk.CopySizes(box.last(dimensions));
  live_bytes_.Add(chunk.extents());
  return {};
}

Result<void> RankBatch::AddSegment(const TableRecord& record) {
  CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(record.value));
  if (IdOf(info) != SegmentIdOf(epoch_, attempt_, rank_, part_segments_++)) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("the part of rank {} contains a segment of another", rank_));
  }
  records_.Add(record);
  return {};
}

Result<void> RankBatch::Finish() {
  CAIRN_TRY(records_.ForEachInOrder([this](const uint64_t* words) { return writer_.Add(words); }));
  CAIRN_TRY_ASSIGN(run_, writer_.Finish());
  return {};
}

Result<void> RankBatch::ForEachChunk(
    const std::function<Result<void>(const RankChunk& chunk)>& visit) const {
  const uint64_t* box = boxes_.data();
  for (const Chunk& chunk : chunks_) {
    CAIRN_TRY(visit({.rank = chunk.rank,
                     .fqn = chunk.fqn,
                     .length_bytes = chunk.length_bytes,
                     .offsets = {box, chunk.dimensions},
                     .sizes = {box + chunk.dimensions, chunk.dimensions}}));
    box += 2 * chunk.dimensions;
  }
  return {};
}

}  // namespace cairn::kv::internal
