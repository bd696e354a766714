#pragma once
/// Writing one state dict as one step.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal/worker_pool.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"
#include "kv/step_writer.h"
#include "kv/store.h"

namespace cairn::core::internal {

class DeviceSave;

/// The attempt that a save makes; named by Store::NextAttempt where there are several ranks.
struct SaveAttempt {
  uint64_t step = 0;
  std::string name;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Until when ranks wait to hear from rank 0, which may commit until `deadline`, and longer if it
  /// has begun to.
  std::chrono::steady_clock::time_point decision_deadline =
      std::chrono::steady_clock::time_point::max();
  uint64_t turn = 0;  // SaveQueue; several ranks
  bool wait = true;   // false: a rank but the first returns once its part is durable
};

/// An attempt that is under way, written plan by plan.
///
/// Threads: one at a time. Requires that no other save of the store runs meanwhile, and the plans'
/// memory until the end of their Write. Destroying it before the end abandons the attempt.
class SaveSession {
 public:
  /// `store` and `place` as in RunSave; errors as Store::Begin.
  static Result<SaveSession> Begin(kv::Store& store, const SaveAttempt& attempt, const RankInWorld& place,
                               const SaveOptions& options);

  /// Before the first plan that has tensors in device memory; once. `device` must outlive the run.
  /// Errors as StepWriter::UseBlocks.
  Result<void> UseDevice(DeviceSave& device);

  /// The chunks and records of a plan; of several plans none has a tensor of another. `saved`, if
  /// given, gets what was written, but for its step. Pieces in device memory must be digested.
  /// kConflict: chunks that the plan takes for the base's are not, as the base was deleted or
  /// replaced meanwhile.
  Result<void> Write(const SavePlan& plan, const SaveOptions& options, WorkerPool& pool,
                     SavedChunks* saved = nullptr);

  kv::StepWriter& writer() { return *writer_; }
  const RankInWorld& place() const { return place_; }
  std::optional<uint64_t> base_step() const;
  /// True if that step is the base, so that what it wrote says what has not changed since.
  bool IsBase(const kv::StepInfo& step) const;
  /// Of this rank, as far as it has come.
  SaveReport report() const;

 private:
  struct Base {
    std::shared_ptr<const kv::Snapshot> snapshot;
    kv::StepInfo step;
  };
  SaveSession() = default;
  static Result<std::optional<Base>> FindBase(kv::Store& store, const SaveOptions& options);

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  uint64_t step_ = 0;
  RankInWorld place_;
  DeviceSave* device_ = nullptr;  // outlives the run; null: host memory alone
  std::optional<Base> base_;
  std::unique_ptr<kv::StepWriter> writer_;
  SaveReport report_;
};

/// Writes the plan. Requires that no other save of this store runs. `pool` digests. `saved`, if
/// given, holds what the save before wrote, if any, and on success what this one did. Tensors in
/// device memory are digested first, and compared with `saved` where that was the base. Errors as SaveSession. Several ranks: as StepWriter::Gather and AwaitDecision;
/// and kInvalidArgument on all of them where their parts do not make whole tensors or do not agree.
Result<SaveReport> RunSave(kv::Store& store, const SaveAttempt& attempt, SavePlan& plan,
                           const RankInWorld& place, const SaveOptions& options, WorkerPool& pool,
                           SavedChunks* saved = nullptr, DeviceSave* device = nullptr);

}  // namespace cairn::core::internal
