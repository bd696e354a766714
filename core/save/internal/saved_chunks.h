#pragma once
/// A record in memory of the chunks that a save wrote. The next save uses it to find out what has
/// not changed before it copies anything.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/save/internal/save_plan.h"
#include "core/step/contents.h"
#include "core/tensor/tensor.h"
#include "kv/base/digest.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {

/// The chunks that a save wrote. Memory: about 30 bytes per chunk.
struct SavedChunks {
  struct Chunk {
    kv::Digest digest;
    bool reused = false;  // the base of that save had the same bytes
    uint8_t deltas = 0;   // number of the chunk's deltas
  };
  /// The chunks of one PlannedShard.
  struct Shard {
    std::string fqn;
    DType dtype = DType::kUnknown;
    Box box;
    uint64_t first_chunk = 0;
    int device = kHostDevice;
    uint64_t first_page_digest = 0;  // see PlannedShard::first_page_digest
    std::vector<Chunk> chunks;       // from first_chunk on, in the order of the grid
  };
  kv::StepInfo step;
  uint64_t chunk_bytes = 0;
  bool has_statistics = false;  // the records have them
  bool has_records = false;     // the step has records of applications
  std::vector<Shard> shards;    // in the order of the plan
  /// Page digests of the shards in device memory, by device, kept there; shared with the save that
  /// compares with them.
  std::map<int, DeviceMemory> page_digests;
};

/// Looks up shards in key order of their tensors, which is also the order of `base`. Cost: one pass
/// over `base` for all lookups. Ownership: borrows `base`. Threads: one.
class BaseCursor {
 public:
  /// `base` may be null; then nothing is found.
  explicit BaseCursor(const SavedChunks* base) : base_(base) {}

  /// Returns the same chunks of the same box, or null. Requires that `tensor` is not before the
  /// tensor of the previous call in key order.
  const SavedChunks::Shard* Find(const TensorInfo& tensor, const PlannedShard& shard) {
    if (base_ == nullptr) return nullptr;
    while (next_ < base_->shards.size() && base_->shards[next_].fqn < tensor.fqn) ++next_;
    for (size_t i = next_; i < base_->shards.size() && base_->shards[i].fqn == tensor.fqn; ++i) {
      const SavedChunks::Shard& found = base_->shards[i];
      if (found.dtype == tensor.dtype && found.box == shard.grid.box() &&
          found.first_chunk == shard.first_chunk && found.chunks.size() == shard.chunk_count()) {
        return &found;
      }
    }
    return nullptr;
  }

 private:
  const SavedChunks* base_;
  size_t next_ = 0;
};

}  // namespace cairn::core::internal
