#pragma once
/// Writes a planned state dict as one step.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/save/internal/compression_rates.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "core/step/internal/lookup.h"
#include "kv/base/step_info.h"
#include "kv/io/worker_pool.h"
#include "kv/step_writer.h"
#include "kv/store.h"

namespace cairn::core::internal {

class DeviceSave;
struct MergedStep;

/// An attempt to save a step. In a multi-rank store all ranks make the same attempt, whose name is
/// from kv::Store::NextAttempt; otherwise the name is empty.
struct SaveAttempt {
  uint64_t step = 0;
  std::string name;
  /// When the parts of all ranks must be durable.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Until when the other ranks wait for rank 0's decision. Rank 0 may begin to commit until
  /// `deadline`, and finishes a commit that it has begun.
  std::chrono::steady_clock::time_point decision_deadline =
      std::chrono::steady_clock::time_point::max();
  uint64_t queue_position = 0;  // in the SaveQueue of a multi-rank store
  /// What the step continues from, if the save was requested before it begins.
  std::optional<kv::Continuation> continuation = {};
};

/// An attempt that is being written, plan by plan. Destroying it before the commit abandons the
/// attempt.
///
/// Threads: one at a time. No other save of the store may run concurrently. The memory of a plan's
/// tensors is read until kv::StepWriter::Drain or Commit returns.
class SaveSession {
 public:
  /// Finds the base step and begins the attempt. kNotFound: there is no step `options.base_step`.
  /// kConflict: the step exists and `options.overwrite` is false (rank 0). kFailedPrecondition: the
  /// store is open for reading, or another step is being written.
  /// `rates` must outlive the session.
  static Result<SaveSession> Begin(kv::Store& store, const SaveAttempt& attempt,
                                   const RankInWorld& self, const SaveOptions& options,
                                   CompressionRates& rates);

  /// Lets payload pass through the page-locked blocks of `device`, which must outlive the session.
  /// Call once, before the first plan that has tensors in device memory. Errors: see
  /// kv::StepWriter::UseBlocks.
  Result<void> UseDevice(DeviceSave& device);

  /// Writes the chunks and records of a plan. Requires that plans have no tensor in common, and
  /// that shards in device memory are digested. Replaces saved->shards, if `saved` is not null.
  /// Reports at least `reported_bytes` as progress. kConflict: the plan relies on chunks of the
  /// base, which was deleted or replaced in the meantime.
  Result<void> Write(const SavePlan& plan, const SaveOptions& options, kv::WorkerPool& pool,
                     SavedChunks* saved = nullptr, uint64_t reported_bytes = 0);

  /// Rank 0 of several, after kv::StepWriter::Gather: writes the long values that only other ranks
  /// have, and replaces their records.
  Result<void> WriteLongValues(MergedStep& merged, const SaveOptions& options,
                               kv::WorkerPool& pool);

  /// Commits a step with all records of the base, in place of Write and the commit: the caller
  /// knows that nothing has changed since. Requires a base, one rank, and that nothing was written.
  /// kConflict: the base was deleted or replaced in the meantime.
  Result<kv::StepInfo> CommitUnchanged();

  kv::StepWriter& writer() { return *writer_; }
  const RankInWorld& self() const { return self_; }
  std::optional<uint64_t> base_step() const;
  const StepView* base() const { return base_ ? &*base_ : nullptr; }
  /// True if `step` is the base, so that its SavedChunks state what has not changed since.
  bool IsBase(const kv::StepInfo& step) const;
  /// The report of this rank so far.
  SaveReport report() const;

 private:
  SaveSession() = default;

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  uint64_t step_ = 0;
  RankInWorld self_;
  DeviceSave* device_ = nullptr;  // outlives the session; null: only host memory so far
  std::optional<StepView> base_;
  bool compress_ = false;
  CompressionRates* rates_ = nullptr;  // outlives the session
  std::unique_ptr<kv::StepWriter> writer_;
  SaveReport report_;
};

/// The context of RunSave, in addition to the plan. All members must outlive the call.
struct SaveContext {
  kv::Store& store;  // no other save of it runs concurrently
  SaveAttempt attempt;
  RankInWorld self;
  const SaveOptions& options;
  kv::WorkerPool& pool;  // for digests
  TreeCache& trees;
  CompressionRates& rates;
  /// The chunks of the previous save, if its step is set; on success replaced by the chunks of this
  /// save. Null: not recorded.
  SavedChunks* saved = nullptr;
  /// The save that `saved` records has the same shards and records as the plan, except chunk
  /// records, and all tensors are in host memory. Requires one rank.
  bool has_same_records = false;
  DeviceSave* device = nullptr;  // not null if the plan has tensors in device memory
};

/// Writes and commits the plan. Shards in device memory are digested first, unless they are
/// already, and compared with `saved` if that is the base.
///
/// Errors: see SaveSession. In a multi-rank store also kInvalidArgument on all ranks: their parts
/// disagree or do not tile the tensors; kUnavailable: ranks were missing at the deadline; and the
/// error of a rank that failed.
Result<SaveReport> RunSave(SavePlan& plan, const SaveContext& context);

}  // namespace cairn::core::internal
