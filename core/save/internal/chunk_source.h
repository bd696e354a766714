#pragma once
/// Iterates over the chunks of a plan in key order, so that a save can merge them with the chunk
/// records of the base step, which are scanned in the same order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/save/internal/changed_pages.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/contents.h"
#include "core/tensor/internal/tensor_ref.h"
#include "core/tensor/tensor.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/base/payload.h"

namespace cairn::core::internal {

/// One chunk of a plan, and the known properties of the same chunk in the base step. Borrows the
/// plan.
struct PlannedChunk {
  size_t index = 0;   // into PlanLayout::chunks
  size_t shard = 0;   // index into PlanLayout::shards
  size_t tensor = 0;  // index into PlanLayout::tensors
  TensorRef source;
  BoxRef box;                // in the tensor
  uint64_t begin_bytes = 0;  // in the row-major form of `source`
  uint64_t length_bytes = 0;
  kv::SegmentAlignment alignment = kv::SegmentAlignment::kNone;
  /// The chunk with the same key, length and page size, if there is one.
  std::optional<ChunkInfo> base;
  std::vector<uint64_t> page_digests;  // empty until the chunk is digested
  kv::Digest digest;                   // valid if is_digested()
  std::optional<kv::ChunkStatistics> statistics;
  bool may_change = true;            // the caller's memory, to which its other threads may write
  bool has_bytes = true;             // false: not read, because the base has the same bytes
  bool is_stated_unchanged = false;  // by the caller (SaveOptions::unchanged)
  bool is_taken_from_base = false;   // so stated, and not compared
  /// For tensors in device memory: which pages differ from the base; null if that is not known.
  const std::vector<bool>* changed_pages = nullptr;
  std::vector<uint64_t> base_page_digests;  // empty: not read, or not the base's
  std::optional<PageRanges> ranges;         // pages to write, if not all
  std::vector<std::byte> delta;             // to be written in place of pages; empty: none
  bool is_compressed = false;               // `delta` contains all bytes
  kv::Digest delta_base;                    // digest of the bytes to which the delta is relative

  /// True if the chunk may be the same as the base's chunk.
  bool is_candidate() const { return base && has_bytes; }
  bool is_unchanged() const { return base && base->digest == digest; }
  bool is_on_device() const { return source.device != kHostDevice; }
  HostPayload host_payload() const { return {source, begin_bytes, length_bytes, may_change}; }
  bool is_digested() const { return !page_digests.empty() || !has_bytes; }
};

/// Returns the alignment of the first chunk of a shard in its segment.
inline kv::SegmentAlignment FirstAlignment(const PlanLayout& layout, const PlannedShard& shard) {
  return layout.LengthOf(shard) >= kLargeShardBytes ? kv::SegmentAlignment::k4096
                                                    : kv::SegmentAlignment::k64;
}

/// Sets `key` to kv::ChunkKey. Cost: no allocation, if `key` is reused.
inline void SetChunkKey(const TensorEntry& tensor, const BoxRef& box, std::string& key) {
  key.assign(tensor.key());
  for (const uint64_t offset : box.offsets()) kv::AppendBigEndian(key, offset);
}

/// Ownership: borrows the plan, which must not change. Threads: one.
class ChunkSource {
 public:
  explicit ChunkSource(const SavePlan& plan) : plan_(plan), layout_(*plan.layout) { NextTensor(); }

  /// True if all chunks were taken.
  bool done() const { return at_ == chunks_.size(); }
  /// Returns the key of the next chunk; valid until Take. Requires !done().
  const std::string& PeekKey() {
    CAIRN_CHECK(!done());
    if (!key_.empty()) return key_;
    const auto [shard, index] = chunks_[at_];
    SetChunkKey(layout_.tensors[layout_.shards[shard].tensor], layout_.chunks[index].box, key_);
    return key_;
  }
  /// Returns the next chunk and advances. Requires !done().
  PlannedChunk Take() {
    CAIRN_CHECK(!done());
    PlannedChunk chunk = Make(chunks_[at_]);
    key_.clear();
    if (++at_ == chunks_.size()) NextTensor();
    return chunk;
  }

 private:
  struct Position {
    size_t shard = 0;
    size_t index = 0;  // into PlanLayout::chunks
  };
  /// Lists the chunks of the next tensor in key order, in which chunks of several shards may
  /// alternate.
  void NextTensor() {
    at_ = 0;
    chunks_.clear();
    if (next_shard_ == layout_.shards.size()) return;
    const size_t first = next_shard_;
    const size_t tensor = layout_.shards[first].tensor;
    for (; next_shard_ < layout_.shards.size() && layout_.shards[next_shard_].tensor == tensor;
         ++next_shard_) {
      const PlannedShard& shard = layout_.shards[next_shard_];
      for (size_t i = shard.first_chunk; i < shard.end_chunk; ++i) {
        chunks_.push_back({next_shard_, i});
      }
    }
    if (next_shard_ - first == 1) return;
    std::ranges::sort(chunks_, [this](const Position& a, const Position& b) {
      return std::ranges::lexicographical_compare(layout_.chunks[a.index].box.offsets(),
                                                  layout_.chunks[b.index].box.offsets());
    });
  }

  PlannedChunk Make(const Position& position) const {
    const auto [shard_index, index] = position;
    const PlannedShard& shard = layout_.shards[shard_index];
    const ShardSource& source = plan_.sources[shard_index];
    const auto& [box, begin_bytes, length_bytes] = layout_.chunks[index];
    PlannedChunk chunk{.index = index,
                       .shard = shard_index,
                       .tensor = shard.tensor,
                       .source = plan_.SourceOf(shard_index),
                       .box = box,
                       .begin_bytes = begin_bytes,
                       .length_bytes = length_bytes,
                       .may_change = !source.is_stable,
                       .is_stated_unchanged = source.is_stated_unchanged,
                       .is_taken_from_base = plan_.IsTakenFromBase(shard_index, index)};
    if (!plan_.unchanged.empty() && plan_.unchanged[index]) {
      chunk.digest = *plan_.unchanged[index];
      chunk.has_bytes = false;
    } else if (index < plan_.pages.size() && !plan_.pages[index].page_digests.empty()) {
      const ChunkPages& pages = plan_.pages[index];
      chunk.page_digests = pages.page_digests;
      chunk.digest = kv::RootDigest(chunk.page_digests, chunk.length_bytes);
      if (!pages.changed.empty()) chunk.changed_pages = &pages.changed;
      chunk.delta = pages.delta;
      chunk.delta_base = pages.delta_base;
    }
    if (index == shard.first_chunk) chunk.alignment = FirstAlignment(layout_, shard);
    return chunk;
  }

  const SavePlan& plan_;
  const PlanLayout& layout_;
  size_t next_shard_ = 0;         // the first shard that was not in chunks_ yet
  std::vector<Position> chunks_;  // chunks of one tensor
  size_t at_ = 0;                 // in chunks_
  std::string key_;               // key of the next chunk, or empty
};

}  // namespace cairn::core::internal
