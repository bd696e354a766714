#pragma once
/// What the save before wrote, for the next one to find out what has not changed.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/tensor.h"
#include "kv/digest.h"
#include "kv/step_info.h"

namespace cairn::core::internal {

/// What a save wrote, chunk by chunk, for the one after it to find out what has not changed before
/// it copies anything. Some 30 bytes a chunk.
struct SavedChunks {
  struct Chunk {
    kv::Digest digest;
    bool reused = false;  // was that of the base already
  };
  struct Piece {
    std::string fqn;
    DType dtype = DType::kUnknown;
    Box box;
    uint64_t first_chunk = 0;
    int device = kHostDevice;
    uint64_t first_page_digest = 0;    // as PlannedShard::first_page_digest
    std::vector<Chunk> chunks;  // from first_chunk on, in the order of the grid
  };
  kv::StepInfo step;
  uint64_t chunk_bytes = 0;
  std::vector<Piece> pieces;  // as in the plan
  /// Page digests of pieces in device memory, kept there; shared with the save that compares.
  std::map<int, std::shared_ptr<const DevicePageDigests>> page_digests;
};

}  // namespace cairn::core::internal
