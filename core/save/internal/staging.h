#pragma once
/// Host memory to which a state is copied, so that it can be written in the background.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/codec/internal/delta_encoder.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "kv/base/digest.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {

/// Memory of one thread that encodes deltas.
struct StagedDeltaScratch {
  DeltaEncoder encoder;
  std::vector<std::byte> page = std::vector<std::byte>(kv::kPageBytes);
};

/// One memory region, which is kept from save to save and replaced only by a larger one.
/// Ownership: owns the memory that staged tensors point to. Threads: one at a time.
class StagingArea {
 public:
  StagingArea() : pool_(std::min<size_t>(2, kv::WorkerThreads())) {}
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  /// Copies the shards of the plan that are in host memory to this area, row-major, and makes the
  /// plan point to the copies, which are valid until the next call. kResourceExhausted: not enough
  /// memory; the plan is unchanged.
  ///
  /// With `base`, chunks that the previous save found unchanged are digested first, which costs
  /// less than a copy, and are not copied if they are still unchanged (SavePlan::unchanged).
  /// Chunks that had changed are assumed to have changed again. Nothing is copied of shards that
  /// the caller states to be unchanged. kInvalidArgument: one of them has changed
  /// (SaveOptions::unchanged). Calls SaveOptions::hold_memory before it reads anything.
  ///
  /// With SaveOptions::max_deltas, changed chunks with fewer deltas are compared with what this
  /// area contains, if the plan has the same layout as the one before. If that is the chunk of
  /// `base`, which its digest proves, and a delta pays off, the delta and the page digests are
  /// added to the plan.
  Result<void> Stage(SavePlan& plan, const SavedChunks* base, const SaveOptions& options);

  /// Address space that is held. Only what was ever copied to occupies memory.
  uint64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  Result<void> Reserve(uint64_t bytes);

  std::byte* memory_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  std::vector<uint64_t> tensor_offsets_bytes_;  // where the shards of tensors are in the area
  kv::WorkerPool pool_;                         // two threads saturate the memory bandwidth
  std::vector<StagedDeltaScratch> scratch_;     // one per thread, or none before the first delta
};

}  // namespace cairn::core::internal
