#pragma once
/// The part of a state dict that one rank writes. SavePlanner (core/save/internal/save_planner.h)
/// computes it; staging and device digests then update it, and a SaveSession writes it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal/arena.h"
#include "core/device/device.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/internal/tensor_ref.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// Shards of at least this length begin on 4 KiB in their segment. If staging has aligned them in
/// memory too, they are written directly from there.
inline constexpr uint64_t kLargeShardBytes = 64 << 10;

/// The FQN and the record of a value.
using NamedRecord = std::pair<std::string, std::vector<std::byte>>;

/// This process among the ranks that save together.
struct RankInWorld {
  uint32_t rank = 0;
  uint32_t world_size = 1;
};

/// A box of one of the plan's tensors, which this rank writes.
struct PlannedShard {
  uint32_t tensor = 0;  // index into PlanLayout::tensors
  /// Index into StateDict::values, if the bytes are those of a long value.
  std::optional<uint32_t> value_slot;
  size_t first_chunk = 0;  // [first_chunk, end_chunk) of PlanLayout::chunks
  size_t end_chunk = 0;    // at least one chunk
  BoxRef box;
  const TensorRef* source = nullptr;  // view of the box, in PlanLayout::views

  bool on_device() const { return source->device != kHostDevice; }
};

/// A chunk of a shard.
struct ShardChunk {
  BoxRef box;                // in the tensor
  uint64_t begin_bytes = 0;  // in the row-major payload of the shard
  uint64_t length_bytes = 0;
};

/// What a plan never changes. Owns the texts and numbers of its members. Memory: about 300 bytes
/// per tensor of one chunk.
struct PlanLayout {
  Arena memory;
  std::deque<TensorAlias> aliases;
  std::deque<TensorRef> views;       // first StateDict::tensors, in this order; then others
  std::vector<TensorEntry> tensors;  // key order; chunk_count counts the chunks of this rank
  std::vector<PlannedShard> shards;  // in the order of `tensors`
  std::vector<ShardChunk> chunks;    // per shard, in key order
  std::vector<std::byte> structure;

  std::span<const uint64_t> Copy(std::span<const uint64_t> numbers) {
    const std::span<uint64_t> copy = memory.Numbers(numbers.size());
    std::ranges::copy(numbers, copy.begin());
    return copy;
  }
  /// Adds a view with copies of its numbers.
  const TensorRef* AddView(TensorRef view) {
    view.shape = Copy(view.shape);
    view.strides = Copy(view.strides);
    return &views.emplace_back(view);
  }
  std::span<const ShardChunk> ChunksOf(const PlannedShard& shard) const {
    return std::span(chunks).subspan(shard.first_chunk, shard.end_chunk - shard.first_chunk);
  }
  uint64_t LengthOf(const PlannedShard& shard) const {
    CAIRN_CHECK(shard.end_chunk > shard.first_chunk);
    const ShardChunk& last = chunks[shard.end_chunk - 1];
    return last.begin_bytes + last.length_bytes;
  }
};

/// The memory that is written of a shard.
struct ShardSource {
  const std::byte* data = nullptr;
  bool is_copy = false;    // row-major, in staging memory or in a snapshot on the device
  bool is_stable = false;  // staged, not the caller's tensor
  /// The caller states that the chunks equal the base step's (SaveOptions::unchanged).
  bool is_stated_unchanged = false;
  uint64_t first_page_digest = 0;  // position of the shard's page digests among its device's
};

/// The result of digesting a chunk on its device, or while it was staged.
struct ChunkPages {
  std::vector<uint64_t> page_digests;  // empty if SavePlan::unchanged has the chunk's digest
  std::vector<bool> changed;           // pages that differ from the base; empty if not known
  std::vector<std::byte> delta;        // empty: none
  kv::Digest delta_base;               // digest of the bytes to which the delta is relative
};

/// A state dict that is ready to be written: checked and flattened, with owners, aliases and this
/// rank's chunks decided.
struct SavePlan {
  std::shared_ptr<const PlanLayout> layout;  // shared by copies of the plan and by SavedChunks
  std::vector<ShardSource> sources;          // one per shard
  /// Digests of chunks that are known to equal the base step's, and whose bytes are not in
  /// `sources`. One element per chunk, or empty if all bytes are in `sources`.
  std::vector<std::optional<kv::Digest>> unchanged;
  /// By chunk, of all chunks or of the first ones. In host memory, chunks whose page digests are
  /// not known have none.
  std::vector<ChunkPages> pages;
  /// The chunk that is compared although it is stated to be unchanged, if there is one.
  std::optional<size_t> compared_chunk;

  std::vector<NamedRecord> values;  // key order
  uint64_t tensor_count = 0;        // leaves; hidden tensors are not counted
  uint64_t logical_bytes = 0;       // length of whole tensors, including the parts of other ranks
  uint64_t own_bytes = 0;           // bytes that this rank writes
  bool has_shards = false;          // the parts of the ranks must be checked to tile the tensors
  bool has_lost_marks = false;      // is_stated_unchanged was removed from shards (UnmarkRenamed)
  bool has_deltas = false;  // `pages` contain all deltas; the base need not be read for them

  const std::vector<TensorEntry>& tensors() const { return layout->tensors; }
  const std::vector<PlannedShard>& shards() const { return layout->shards; }
  /// The view of a shard's box, or of its copy. Valid as long as `layout`.
  TensorRef SourceOf(size_t shard) const {
    TensorRef source = *layout->shards[shard].source;
    source.data = sources[shard].data;
    if (sources[shard].is_copy) source.strides = {};
    return source;
  }
  /// True if the bytes of the chunk need not be read where the base has the same chunk.
  bool IsTakenFromBase(size_t shard, size_t chunk) const {
    return sources[shard].is_stated_unchanged && chunk != compared_chunk;
  }
};

}  // namespace cairn::core::internal
