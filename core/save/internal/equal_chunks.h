#pragma once
/// Finds chunks with equal bytes under other keys: copies of a tensor, and tensors that were
/// renamed.

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/save/internal/chunk_source.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/internal/lookup.h"
#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/step_writer.h"

namespace cairn::core::internal {

/// Digests find candidates; their bytes are compared before they are shared. Chunks below 4 KiB or
/// above 64 MiB are not shared. Memory: about 100 bytes per chunk of the base and of this save, at
/// most 2^20 each; one chunk. Ownership: borrows everything. Threads: one.
class EqualChunks {
 public:
  EqualChunks(const kv::StepWriter& writer, const StepView* base) : writer_(writer), base_(base) {}

  static bool IsCandidate(const PlannedChunk& chunk) {
    return chunk.has_bytes && !chunk.is_on_device() && chunk.length_bytes >= kMinBytes &&
           chunk.length_bytes <= kMaxBytes;
  }

  struct Found {
    kv::ChunkExtents extents;
    uint64_t since_step = 0;
    bool in_base = false;  // the base has the extents; otherwise the current segment
  };
  /// Returns where the bytes of a digested chunk are stored; nothing if they are not found. The
  /// records of the base are read for the first chunk whose key the base does not have. Bytes that
  /// cannot be read are not found.
  std::optional<Found> Find(const PlannedChunk& chunk);
  /// Adds a chunk that was appended. Its memory must not change until the save ends.
  void Add(const PlannedChunk& chunk, const kv::ChunkExtents& extents, uint64_t step);

 private:
  static constexpr uint64_t kMinBytes = 4096;
  static constexpr uint64_t kMaxBytes = 64 << 20;
  static constexpr size_t kMaxChunks = size_t{1} << 20;

  struct Hash {
    size_t operator()(const kv::Digest& digest) const { return digest.lo; }
  };
  struct Written {
    const TensorView* source = nullptr;
    uint64_t begin_bytes = 0;
    uint64_t length_bytes = 0;
    kv::ChunkExtents extents;
    uint64_t step = 0;
  };
  struct InBase {
    std::string key;
    ChunkInfo info;
  };

  void ReadBase();
  bool IsSame(const PlannedChunk& chunk, const Written& written);
  bool IsSame(const PlannedChunk& chunk, const InBase& stored);
  /// Requires payload of the length of the chunk.
  bool HasPages(const PlannedChunk& chunk, const HostPayload& other);

  const kv::StepWriter& writer_;
  const StepView* const base_;
  bool base_was_read_ = false;
  std::unordered_map<kv::Digest, Written, Hash> written_;
  std::unordered_map<kv::Digest, InBase, Hash> in_base_;
  std::vector<std::byte> stored_;  // the chunk that was read last
  std::vector<std::byte> pages_[2] = {std::vector<std::byte>(kv::kPageBytes),
                                      std::vector<std::byte>(kv::kPageBytes)};
};

}  // namespace cairn::core::internal
