#pragma once
/// Finds deltas of tensors in device memory, by comparing them there with copies of what the last
/// save wrote.
///
/// A save keeps such a copy of each tensor for the next save, as far as
/// SaveOptions::device_delta_bytes allows. The device lists the elements that differ from the copy
/// and replaces it; only the lists cross the bus. Afterwards the copy contains what this save
/// writes, so the save reads the copy and no longer the tensor.
///
/// A delta is used only if the digests of the copy, before and after, are those of the steps.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/internal/worker_pool.h"
#include "core/delta/internal/delta_encoder.h"
#include "core/device/device.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"

namespace cairn::core::internal {

/// What the deltas of one device are found with. Everything must outlive the object.
struct DeviceDeltaContext {
  DeviceBackend& backend;
  DeviceQueue& queue;
  SavePlan& plan;  // digested
  /// The page digests of the plan's shards on this device.
  const DevicePageDigests& page_digests;
  /// What the plan was compared with; null: nothing. Its copies are taken.
  SavedChunks* base = nullptr;
  uint32_t max_deltas = 0;
  uint64_t budget_bytes = 0;  // of copies, on this device
};

/// Threads: one at a time. Memory: 32 MiB on the host, and the deltas.
class DeviceDeltas {
 public:
  explicit DeviceDeltas(const DeviceDeltaContext& context);

  /// Sets PlannedShard::device_copy of the shards that have a copy from now on, and lets them point
  /// to it; and `delta` of those chunks for which one pays off. Waits for the device. If memory is
  /// exhausted, returns success, and no shard has a copy or deltas. kUnavailable: the device
  /// failed.
  Result<void> Run();

  /// Bytes that were copied to the host.
  uint64_t fetched_bytes() const { return fetched_bytes_; }
  /// All copies that were used, including those that the plan no longer refers to. They must be
  /// kept until the queue's work has ended.
  std::vector<std::shared_ptr<DeviceMemory>> TakeMemory() { return std::move(memory_); }

 private:
  /// A shard that may have a copy.
  struct Candidate {
    PlannedShard* shard = nullptr;
    SavedChunks::Shard* base = nullptr;  // null: none
    bool is_changed = false;
    bool is_new = false;    // the copy does not contain the base
    bool is_wrong = false;  // the copy has other bytes than were digested
    uint32_t tried = 0;     // chunks that were compared
    uint32_t encoded = 0;   // of these, chunks with a delta
  };
  /// A chunk that is compared with its copy.
  struct Job {
    Candidate* candidate = nullptr;
    uint64_t chunk = 0;         // counted from the shard's first_chunk
    std::vector<size_t> pages;  // that changed
    uint32_t first = 0;         // index of the first of them in comparisons_
    size_t list_offset = 0;     // in what was fetched
    bool is_worth = false;
  };

  void FindCandidates();
  /// Finds the deltas, and checks the copies that all candidates have then.
  Result<void> Find();
  /// Decides which shards have a copy, and allocates those that are missing.
  Result<void> ChooseCopies();
  Result<void> AllocateCopies(uint64_t kept_bytes);
  Result<void> UpdateCopy(Candidate& candidate);
  Result<void> Compare(Candidate& candidate, uint64_t chunk);
  Result<void> RunBatch();
  bool IsWorthFetching(const Job& job, std::span<const uint32_t> counts) const;
  void Encode(const Job& job, std::span<const uint32_t> counts, std::span<const std::byte> lists,
              DeltaEncoder& encoder) const;
  /// Compares the digests of all copies with those of the tensors.
  Result<void> VerifyCopies();
  void UseCopies();
  static void Drop(PlannedShard& shard);

  const DeviceDeltaContext context_;
  std::vector<Candidate> candidates_;
  std::vector<std::shared_ptr<DeviceMemory>> memory_;  // shared with the plan and the next save
  std::vector<PageComparison> comparisons_;
  std::vector<Job> jobs_;
  WorkerPool pool_;
  std::vector<DeltaEncoder> encoders_;  // one per worker
  uint64_t fetched_bytes_ = 0;
};

}  // namespace cairn::core::internal
