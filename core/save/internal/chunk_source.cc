#include "core/save/internal/chunk_source.h"

#include <algorithm>
#include <utility>

#include "kv/base/key.h"

namespace cairn::core::internal {

kv::SegmentAlignment FirstAlignment(const PlannedShard& shard) {
  return shard.end_bytes() - shard.begin_bytes() >= kLargeShardBytes ? kv::SegmentAlignment::k4096
                                                                     : kv::SegmentAlignment::k64;
}

PlannedChunk& ChunkSource::Peek() {
  CAIRN_CHECK(!done());
  if (!current_) current_ = Make();
  return *current_;
}

PlannedChunk ChunkSource::Take() {
  CAIRN_CHECK(!done());
  PlannedChunk chunk = current_ ? *std::exchange(current_, std::nullopt) : Make();
  if (++at_ == chunks_.size()) NextTensor();
  return chunk;
}

void ChunkSource::NextTensor() {
  at_ = 0;
  chunks_.clear();
  if (next_shard_ == plan_.shards.size()) return;
  const size_t first = next_shard_;
  const size_t tensor = plan_.shards[first].tensor;
  for (; next_shard_ < plan_.shards.size() && plan_.shards[next_shard_].tensor == tensor;
       ++next_shard_) {
    const PlannedShard& shard = plan_.shards[next_shard_];
    for (uint64_t i = shard.first_chunk; i < shard.end_chunk; ++i) {
      chunks_.push_back({next_shard_, i});
    }
  }
  if (next_shard_ - first == 1) return;
  const auto offsets = [this](const Position& position) {
    return plan_.shards[position.shard].grid.chunk(position.index).offsets;
  };
  std::ranges::sort(chunks_, {}, offsets);
}

PlannedChunk ChunkSource::Make() const {
  const auto [shard_index, chunk_index] = chunks_[at_];
  const PlannedShard& shard = plan_.shards[shard_index];
  const TensorInfo& tensor = plan_.tensors[shard.tensor];
  Box box = shard.grid.chunk(chunk_index);
  PlannedChunk chunk{.shard = shard_index,
                     .tensor = shard.tensor,
                     .source = &shard.source,
                     .key = kv::ChunkKey(tensor.fqn, box.offsets),
                     .sizes = std::move(box.sizes),
                     .begin_bytes = shard.grid.offset_bytes(chunk_index) - shard.skipped_bytes,
                     .length_bytes = shard.grid.length_bytes(chunk_index),
                     .may_change = !shard.has_stable_source,
                     .is_stated_unchanged = shard.is_stated_unchanged,
                     .is_taken_from_base = shard.IsTakenFromBase(chunk_index)};
  const uint64_t i = chunk_index - shard.first_chunk;
  if (!shard.unchanged.empty() && shard.unchanged[i]) {
    chunk.digest = *shard.unchanged[i];
    chunk.has_bytes = false;
  } else if (!shard.pages.empty() && !shard.pages[i].page_digests.empty()) {
    chunk.page_digests = shard.pages[i].page_digests;
    chunk.digest = kv::RootDigest(chunk.page_digests, chunk.length_bytes);
    if (!shard.pages[i].changed.empty()) chunk.changed_pages = &shard.pages[i].changed;
    chunk.delta = shard.pages[i].delta;
    chunk.delta_base = shard.pages[i].delta_base;
  }
  if (chunk_index == shard.first_chunk) {
    chunk.alignment = FirstAlignment(shard);
  }
  return chunk;
}

}  // namespace cairn::core::internal
