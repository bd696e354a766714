#pragma once
/// The part of a state dict that one rank writes. SavePlanner (core/save/internal/save_planner.h)
/// computes it; staging and device digests then update the shards, and a SaveSession writes it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/step/contents.h"
#include "core/tensor/chunk_grid.h"
#include "kv/base/chunk_record.h"
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

/// A box of one of the plan's tensors, and the range [first_chunk, end_chunk) of the box's chunks
/// that this rank writes.
struct PlannedShard {
  size_t tensor = 0;  // index into SavePlan::tensors
  ChunkGrid grid;     // grid of the box
  uint64_t first_chunk = 0;
  uint64_t end_chunk = 0;
  TensorView source;  // view of the box
  /// Offset of source.data in the row-major payload of the box: staging copies only the chunks that
  /// this rank writes.
  uint64_t skipped_bytes = 0;
  /// Digests of chunks that are known to equal the base step's, and whose bytes are not in
  /// `source`. One element per chunk from first_chunk on, or empty if all bytes are in `source`.
  std::vector<std::optional<kv::Digest>> unchanged;

  /// The caller states that these chunks equal the base step's (SaveOptions::unchanged).
  bool is_stated_unchanged = false;
  /// The chunk that is compared nevertheless, if it is one of this shard.
  std::optional<uint64_t> compared_chunk;

  /// The result of digesting a chunk on its device, or while it was staged.
  struct ChunkPages {
    std::vector<uint64_t> page_digests;  // empty if `unchanged` has the chunk's digest
    std::vector<bool> changed;           // pages that differ from the base; empty if not known
    std::vector<std::byte> delta;        // empty: none
    kv::Digest delta_base;               // digest of the bytes to which the delta is relative
  };
  /// One per chunk from first_chunk on, or empty. In host memory, chunks whose page digests are not
  /// known have none.
  std::vector<ChunkPages> pages;
  uint64_t first_page_digest = 0;  // position of the shard's page digests among its device's

  bool has_stable_source = false;  // `source` is staged, not the caller's tensor
  /// Index into StateDict::values, if the bytes are those of a long value.
  std::optional<size_t> value_slot;

  /// True if the bytes of the chunk need not be read where the base has the same chunk.
  bool IsTakenFromBase(uint64_t chunk) const {
    return is_stated_unchanged && chunk != compared_chunk;
  }
  bool on_device() const { return source.device != kHostDevice; }
  uint64_t chunk_count() const { return end_chunk - first_chunk; }
  /// The range of bytes in the row-major payload of the box that this rank writes. Requires at
  /// least one chunk.
  uint64_t begin_bytes() const { return grid.offset_bytes(first_chunk); }
  uint64_t end_bytes() const {
    CAIRN_CHECK(end_chunk > first_chunk);
    return grid.offset_bytes(end_chunk - 1) + grid.length_bytes(end_chunk - 1);
  }
};

/// A state dict that is ready to be written: checked and flattened, with owners, aliases and this
/// rank's chunks decided.
struct SavePlan {
  std::vector<TensorInfo> tensors;   // key order; chunk_count counts the chunks of this rank
  std::vector<PlannedShard> shards;  // in the order of `tensors`; each has at least one chunk
  std::vector<NamedRecord> values;   // key order
  std::vector<std::byte> structure;
  uint64_t tensor_count = 0;    // leaves; hidden tensors are not counted
  uint64_t logical_bytes = 0;   // length of whole tensors, including the parts of other ranks
  uint64_t own_bytes = 0;       // bytes that this rank writes
  bool has_shards = false;      // the parts of the ranks must be checked to tile the tensors
  bool has_lost_marks = false;  // is_stated_unchanged was removed from shards (UnmarkRenamed)
  bool has_deltas = false;      // `pages` contain all deltas; the base need not be read for them
};

}  // namespace cairn::core::internal
