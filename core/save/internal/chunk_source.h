#pragma once
/// Iterates over the chunks of a plan in key order, so that a save can merge them with the chunk
/// records of the base step, which are scanned in the same order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/save/internal/changed_pages.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/contents.h"
#include "core/tensor/tensor.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/base/payload.h"

namespace cairn::core::internal {

/// One chunk of a plan, and the known properties of the same chunk in the base step. Borrows the
/// plan.
struct PlannedChunk {
  size_t shard = 0;   // index into SavePlan::shards
  size_t tensor = 0;  // index into SavePlan::tensors
  const TensorView* source = nullptr;
  std::string key;
  Shape sizes;
  uint64_t begin_bytes = 0;  // in the row-major form of *source
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
  bool is_on_device() const { return source->device != kHostDevice; }
  HostPayload host_payload() const { return {*source, begin_bytes, length_bytes, may_change}; }
  bool is_digested() const { return !page_digests.empty() || !has_bytes; }
};

/// Returns the alignment of the first chunk of a shard in its segment.
inline kv::SegmentAlignment FirstAlignment(const PlannedShard& shard) {
  return shard.end_bytes() - shard.begin_bytes() >= kLargeShardBytes ? kv::SegmentAlignment::k4096
                                                                     : kv::SegmentAlignment::k64;
}

/// Ownership: borrows the plan, which must not change. Threads: one.
class ChunkSource {
 public:
  explicit ChunkSource(const SavePlan& plan) : plan_(plan) { NextTensor(); }

  /// True if all chunks were taken.
  bool done() const { return at_ == chunks_.size(); }
  /// Returns the next chunk; valid until Take. Requires !done().
  PlannedChunk& Peek() {
    CAIRN_CHECK(!done());
    if (!current_) current_ = Make();
    return *current_;
  }
  /// Returns the next chunk and advances. Requires !done().
  PlannedChunk Take() {
    CAIRN_CHECK(!done());
    PlannedChunk chunk = current_ ? *std::exchange(current_, std::nullopt) : Make();
    if (++at_ == chunks_.size()) NextTensor();
    return chunk;
  }

 private:
  struct Position {
    size_t shard = 0;
    uint64_t index = 0;
  };
  /// Lists the chunks of the next tensor in key order, in which chunks of several shards may
  /// alternate.
  void NextTensor() {
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

  PlannedChunk Make() const {
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

  const SavePlan& plan_;
  size_t next_shard_ = 0;         // the first shard that was not in chunks_ yet
  std::vector<Position> chunks_;  // chunks of one tensor
  size_t at_ = 0;                 // in chunks_
  std::optional<PlannedChunk> current_;
};

}  // namespace cairn::core::internal
