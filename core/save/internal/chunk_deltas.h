#pragma once
/// Encodes changed chunks as deltas relative to the base step.
///
/// The pages of the base that differ are read, verified and compared with the new ones, unless
/// staging has done so in memory (staging.h). A chunk gets a delta if that is at most half as long
/// as the pages that would be written otherwise, and if the chunk's deltas together are then at
/// most half as long as the chunk, so that a load reads at most 1.5 times its bytes. Chunks that
/// cannot have a delta are written as before.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/codec/internal/delta_encoder.h"
#include "core/save/internal/chunk_source.h"
#include "core/save/internal/save_plan.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {

/// Chunks that are longer have no deltas: their base would have to be in memory.
inline constexpr uint64_t kMaxComparedBytes = 16 << 20;
/// If a chunk of a tensor was tried in vain, only every N-th chunk of the tensor is tried.
inline constexpr uint32_t kDeltaTryInterval = 16;

/// Returns the longest delta of a chunk that pays off, if pages of `changed_bytes` have changed.
constexpr uint64_t MaxDeltaBytes(uint64_t chunk_bytes, uint64_t changed_bytes) {
  return (chunk_bytes < changed_bytes ? chunk_bytes : changed_bytes) / 2;
}

/// Threads: one caller, which works on the pool.
class ChunkDeltas {
 public:
  /// `max_deltas` is the largest number of deltas of a chunk; 0 encodes none. Everything must
  /// outlive the object.
  ChunkDeltas(const SavePlan& plan, const StepView& base, kv::WorkerPool& pool,
              uint32_t max_deltas);

  /// True if the chunk, whose bytes differ from its base, may become a delta.
  bool IsPossible(const PlannedChunk& chunk) const;
  /// True if Encode may set a delta of the chunk. It then needs the chunk's base_page_digests.
  bool IsWorthEncoding(const PlannedChunk& chunk) const {
    return !plan_.has_deltas && !chunk.is_on_device() && IsPossible(chunk);
  }
  /// Removes a delta that was encoded when the chunk was staged, if the chunk must not have it or
  /// its base is not the base of the delta.
  void CheckStaged(PlannedChunk& chunk) const;

  /// Sets `delta` of the chunks for which a delta pays off. An error of a read is ignored: the
  /// chunk gets no delta. Memory: 16 MiB of the base, and the deltas. Requires that no work of the
  /// pool is running.
  void Encode(std::span<PlannedChunk> chunks);

 private:
  /// A chunk that is being encoded, and the pages of its base that differ.
  struct Job {
    PlannedChunk* chunk = nullptr;
    std::vector<uint64_t> pages;
    std::vector<std::byte> bytes;  // bytes of these pages, one after the other
    DeltaChain chain;
  };
  static constexpr uint64_t kBatchBytes = 16 << 20;

  /// Finds the pages that differ. Returns nothing if the chunk should not be tried.
  std::optional<Job> MakeJob(PlannedChunk& chunk);
  void RunBatch(std::span<Job> jobs);
  /// Returns whether everything was read.
  bool ReadBase(std::span<Job> jobs) const;
  /// Compares the pages and sets `delta`, if it pays off.
  void EncodeChunk(Job& job, size_t worker);

  const SavePlan& plan_;
  const StepView& base_;
  kv::WorkerPool& pool_;
  const uint32_t max_deltas_;
  std::vector<DeltaEncoder> encoders_;           // one per worker
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  // The last tensor of which a chunk was tried in vain.
  std::optional<size_t> refused_tensor_;
  uint32_t untried_ = 0;
};

}  // namespace cairn::core::internal
