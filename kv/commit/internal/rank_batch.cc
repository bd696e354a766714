// Verifies the records of parts.

#include "kv/commit/internal/rank_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kv/base/chunk_record.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_stream.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kDigestKeyBytes = 16;
constexpr size_t kKeptChunks = 1024;  // tensors whose memory a batch keeps

}  // namespace

RankChunks RankBatch::Chunks::View() const {
  return {.fqn = std::string_view(name).substr(0, name.size() - 1),
          .ranks = ranks,
          .length_bytes = length_bytes,
          .boxes = boxes};
}

void RankBatch::BeginPart(uint32_t rank) {
  rank_ = rank;
  part_segments_ = 0;
}

void RankBatch::Clear() {
  words_.clear();
  block_.reset();
  if (chunks_.size() > kKeptChunks) {
    by_name_.clear();
    chunks_.clear();
  }
  // The next parts most often have chunks of the same tensors.
  for (Chunks& chunks : chunks_) {
    chunks.ranks.clear();
    chunks.length_bytes.clear();
    chunks.boxes.clear();
    chunks.records.clear();
  }
  last_chunks_ = 0;
  shared_.clear();
  segments_.clear();
  counts_ = {};
  uses_.clear();
}

Result<void> RankBatch::Add(const RecordView& record) {
  switch (record.column) {
    case Column::kChunks:
      return AddChunk(record.key, record.value);
    case Column::kStructures:
      if (record.key.size() != kDigestKeyBytes) {
        return Fail(ErrorCode::kDataLoss,
                    "a part refers to shared records by a key that is not a digest");
      }
      shared_.emplace_back(rank_, std::string(record.key));
      return {};
    case Column::kSteps: {
      CAIRN_TRY_ASSIGN(const StepInfo part, DecodeStep(aligned_.Assign(record.value)));
      counts_.chunks += part.chunk_count;
      counts_.reused_chunks += part.reused_chunk_count;
      counts_.written_bytes += part.written_bytes;
      return {};
    }
    case Column::kSegments:
      return AddSegment(record.key, aligned_.Assign(record.value));
    default:
      return Fail(ErrorCode::kDataLoss, fmt::format("the part of rank {} contains a {} record",
                                                    rank_, ColumnName(record.column)));
  }
}

Result<void> RankBatch::AddChunk(std::string_view key, std::span<const std::byte> value) {
  const size_t name_bytes = std::min(key.find('\0'), key.size() - 1) + 1;
  // Verified where it is aligned.
  const size_t at = words_.size();
  const StoredRecord stored = Store(key.substr(name_bytes), value);
  ChunkView chunk;
  CAIRN_TRY(chunk.Set(key, stored.value()));
  const size_t dimensions = chunk.dimensions();
  Chunks& chunks = ChunksOf(key.substr(0, name_bytes), dimensions);
  chunks.ranks.push_back(rank_);
  chunks.length_bytes.push_back(chunk.length_bytes());
  const size_t box_at = chunks.boxes.size();
  chunks.boxes.resize(box_at + 2 * dimensions);
  const auto box = std::span(chunks.boxes).subspan(box_at);
  chunk.CopyOffsets(box.first(dimensions));
  chunk.CopySizes(box.last(dimensions));
  chunks.records.push_back(at);
  chunk.extents().ForEach([&](const Extent& extent) {
    if (uses_.empty() || uses_.back().first != extent.segment_id) {
      uses_.emplace_back(extent.segment_id, 0);
    }
    uses_.back().second += extent.length_bytes;
  });
  return {};
}

RankBatch::Chunks& RankBatch::ChunksOf(std::string_view name, size_t dimensions) {
  const auto is_of = [&](const Chunks& chunks) {
    return chunks.dimensions == dimensions && chunks.name == name;
  };
  // Most often they follow those before them, in the order of the tensors of another rank.
  for (size_t i = last_chunks_; i < std::min(last_chunks_ + 2, chunks_.size()); ++i) {
    if (!is_of(chunks_[i])) continue;
    last_chunks_ = i;
    return chunks_[i];
  }
  const auto found = by_name_.find(name);
  if (found != by_name_.end() && is_of(chunks_[found->second])) {
    last_chunks_ = found->second;
    return chunks_[last_chunks_];
  }
  last_chunks_ = chunks_.size();
  Chunks& chunks = chunks_.emplace_back();
  chunks.name = name;
  chunks.dimensions = dimensions;
  by_name_.insert_or_assign(chunks.name, last_chunks_);
  return chunks;
}

StoredRecord RankBatch::Store(std::string_view key, std::span<const std::byte> value) {
  const size_t at = words_.size();
  words_.resize(at + StoredRecord::Size(key.size(), value.size()) / sizeof(uint64_t));
  auto* const target = std::as_writable_bytes(std::span(words_).subspan(at)).data();
  StoredRecord::Write(target, key, value);
  return StoredRecord(target);
}

void RankBatch::Finish() {
  block_ = std::make_unique_for_overwrite<uint64_t[]>(words_.size());
  auto* next = reinterpret_cast<std::byte*>(block_.get());
  for (Chunks& chunks : chunks_) {
    chunks.in_block = {.name = chunks.name, .begin = next};
    for (const size_t at : chunks.records) {
      const StoredRecord record(std::as_bytes(std::span(words_).subspan(at)).data());
      if (chunks.in_block.last != nullptr &&
          record.key() < StoredRecord(chunks.in_block.last).key()) {
        chunks.in_block.is_in_order = false;
      }
      chunks.in_block.last = next;
      std::memcpy(next, record.data(), record.size_bytes());
      next += record.size_bytes();
    }
    chunks.in_block.end = next;
  }
}

Result<void> RankBatch::AddSegment(std::string_view key, std::span<const std::byte> value) {
  CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(value));
  if (info.segment_id != SegmentIdOf(attempt_, rank_, part_segments_++) || info.epoch != epoch_) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("the part of rank {} contains a segment of another", rank_));
  }
  segments_.push_back({.key = std::string(key), .record = {value.begin(), value.end()}});
  return {};
}

}  // namespace cairn::kv::internal
