#pragma once
/// The deltas of a chunk, which lead from its extents to its bytes, one version after the other.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/codec/internal/delta.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// Consecutive deltas of one chunk, read and parsed. Threads: Apply from several at once.
class DeltaChain {
 public:
  /// A chain without deltas: Apply changes nothing.
  DeltaChain() = default;
  /// `memory` has the bytes that the deltas borrow; shared by the chains that were read together.
  DeltaChain(std::vector<Delta> deltas, std::shared_ptr<const std::byte[]> memory)
      : deltas_(std::move(deltas)), memory_(std::move(memory)) {}

  bool empty() const { return deltas_.empty(); }
  /// Applies the deltas to a page: replaces its bytes in the version before the first delta by its
  /// bytes in the version after the last. kDataLoss: a delta is inconsistent.
  Result<void> Apply(uint64_t page, std::span<std::byte> bytes) const;
  /// Applies the deltas to the pages of a range that begins with the page `first_page`.
  Result<void> ApplyAll(uint64_t first_page, std::span<std::byte> bytes) const;
  /// Page digests of the version after the last delta, as the delta states them. Requires !empty().
  std::span<const uint64_t> page_digests() const { return deltas_.back().page_digests(); }

 private:
  std::vector<Delta> deltas_;
  std::shared_ptr<const std::byte[]> memory_;
};

/// Deltas that are read together before they are applied: as many as exceed this cost.
inline constexpr uint64_t kMaxDeltaBytes = 16 << 20;
/// Returns the cost of reading the deltas of a chunk: their length, but at least the 32nd part of
/// their possible size in memory, which is about the length of the chunk each. So deltas that are
/// read together never take more than about 32 * kMaxDeltaBytes and the deltas of one chunk.
uint64_t DeltaCost(const ChunkInfo& chunk);

/// The reading of the deltas of one chunk.
struct DeltaRead {
  const std::string* fqn = nullptr;
  const ChunkInfo* chunk = nullptr;
  size_t first = 0;             // index of the first delta to be read
  DeltaChain* chain = nullptr;  // set to the deltas
};

/// Memory for the bytes of deltas, which are read to it again once no chain refers to it.
struct DeltaMemory {
  std::shared_ptr<std::byte[]> bytes;  // shared with the chains
  uint64_t length_bytes = 0;
};

/// Reads and parses the deltas of several chunks, in one batch of reads, to `memory` or, if it is
/// null, to new memory. Returns the bytes that were read. kDataLoss: a delta is damaged; names key,
/// file and offset. kUnimplemented: one has a newer version. Otherwise the error of a read.
Result<uint64_t> ReadDeltas(const StepView& view, std::span<const DeltaRead> reads,
                            DeltaMemory* memory = nullptr);

/// Reads the chunk `key` into `bytes`, which has its length, and applies its deltas. Does not
/// compare the result with a digest. See kv::DecodeChunkCallback.
Result<void> ReadStoredChunk(const std::shared_ptr<const kv::Snapshot>& snapshot,
                             std::string_view key, const kv::ChunkExtents& extents,
                             std::span<std::byte> bytes);

/// Returns the first extent whose bytes do not match the page digests next to them, or which cannot
/// be read.
std::optional<kv::Extent> FirstDamaged(const kv::Snapshot& snapshot,
                                       const kv::ChunkExtents& extents);

/// Returns the error for a chunk with deltas whose bytes are wrong: reads everything that is stored
/// for it, and names the first extent that is damaged, or the last delta if none is.
Error FindDamage(const StepView& view, const std::string& fqn, const ChunkInfo& chunk,
                 const std::string& message);

}  // namespace cairn::core::internal
