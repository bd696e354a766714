#pragma once
/// What a rank writes of its state dict, decided from the state alone: no word with other ranks.
///
/// A box that one rank holds is written by it. A box that several ranks hold alike is cut into
/// chunks, and each of them writes an equal share: the chunks of all boxes that the same ranks
/// hold, in key order, fall into runs of equal bytes, one a rank. Plain tensors are boxes that
/// every rank holds.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/save/internal/aliases.h"
#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "core/tensor/chunk_grid.h"

namespace cairn::core::internal {

/// Largest chunk that a save may be asked for: page digests of one chunk are held in memory.
inline constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;

/// From here on a piece's payload starts on 4 KiB; staged alike, it is written as it lies.
inline constexpr uint64_t kLargePieceBytes = 64 << 10;

/// This process among those that save together.
struct RankInWorld {
  uint32_t rank = 0;
  uint32_t world_size = 1;
};

/// A box of one of the plan's tensors, and the run of its chunks that this rank writes.
struct PlannedShard {
  size_t tensor = 0;  // in the plan
  ChunkGrid grid;
  uint64_t first_chunk = 0;
  uint64_t end_chunk = 0;
  TensorView source;  // of the box
  /// Of the box's row-major payload, this much comes before source.data: staging has left it out.
  uint64_t skipped_bytes = 0;
  /// Digests of chunks that are known to be those of the base step, and whose bytes are not in
  /// `source`; from first_chunk on, or empty if all bytes are there.
  std::vector<std::optional<kv::Digest>> unchanged;

  /// Of a piece in device memory, once it is digested there: for each chunk from first_chunk on.
  struct ChunkPages {
    std::vector<uint64_t> page_digests;  // page digests; none where `unchanged` has the chunk's
    std::vector<bool> changed;     // pages that are not the base's; none where that is not known
  };
  std::vector<ChunkPages> pages;
  uint64_t first_page_digest = 0;  // of the run's page digests among those of its device
  bool on_device() const { return source.device != kHostDevice; }

  uint64_t chunk_count() const { return end_chunk - first_chunk; }
  /// Where the run begins in the box's payload, and where it ends. Requires a chunk.
  uint64_t begin_bytes() const { return grid.offset_bytes(first_chunk); }
  uint64_t end_bytes() const {
    return grid.offset_bytes(end_chunk - 1) + grid.length_bytes(end_chunk - 1);
  }
};

/// A state dict ready to be written: checked, flattened, owners, aliases and shares decided.
struct SavePlan {
  std::vector<TensorInfo> tensors;   // key order; chunk_count is this rank's
  std::vector<PlannedShard> pieces;  // by tensor; none without chunks
  std::vector<std::pair<std::string, std::vector<std::byte>>> values;  // key order; records
  std::vector<std::byte> structure;
  uint64_t tensor_count = 0;   // leaves; hidden ones not counted
  uint64_t logical_bytes = 0;  // of whole tensors, other ranks' parts included
  uint64_t own_bytes = 0;      // that this rank writes
  bool has_shards = false;     // whether the tensors are whole is then to be checked
};

/// kInvalidArgument: duplicate FQNs, NUL, bad tensors or shardings, too large values; names the
/// key.
Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options,
                          const RankInWorld& place = {});

}  // namespace cairn::core::internal
