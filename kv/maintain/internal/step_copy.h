#pragma once
/// Copies steps one after another: the segments that the target lacks, then the records.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kv/base/copy_options.h"
#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/step_info.h"
#include "kv/maintain/internal/segment_copy.h"
#include "kv/maintain/internal/target_segments.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Ownership: sources, target and options outlive it. Threads: one; it starts others.
class StepCopier {
 public:
  StepCopier(const SnapshotState& source, StoreState& target, const CopyOptions& options);
  /// Removes segments that no step uses and that were not announced.
  ~StepCopier();

  /// Copies from `source` from now on, which is a newer snapshot of the same store.
  void UseSource(const SnapshotState& source) { context_.source = &source; }
  /// Copies one step of the source. Returns the errors of CopySteps.
  Result<CopiedStep> Copy(const StepInfo& step);
  /// Keeps finished segments for the next copier. To be called after an error of Copy.
  Result<void> KeepFinished() { return finished_.Announce(); }

 private:
  using Segments = std::map<uint64_t, SegmentInfo>;  // by id

  /// The number of the copy.
  uint64_t NumberOf(const StepInfo& step) const { return options_.into.value_or(step.step); }
  Result<bool> IsPresent(const StepInfo& step) const;
  Result<Segments> SegmentsOf(const SnapshotState::OpenStep& step) const;
  Result<std::vector<SegmentInfo>> FindMissing(const Segments& segments, Segments& found);
  Result<void> ReserveNames(const std::vector<SegmentInfo>& missing);
  Result<void> CopySegments(const std::vector<SegmentInfo>& missing);
  Result<void> CopyNext(const std::vector<SegmentInfo>& missing);
  Result<void> ReportProgress(uint64_t bytes);
  Result<uint64_t> Commit(const SnapshotState::OpenStep& step, const Segments& segments);
  Result<StepEntry> CommitLocked(const SnapshotState::OpenStep& step, const Segments& segments,
                                 uint64_t announcement_count);
  Result<StepEntry> WriteTable(const SnapshotState::OpenStep& step, const Segments& segments);

  StoreState& target_;
  const CopyOptions& options_;
  const std::shared_ptr<Throttle> throttle_;
  CopyContext context_;
  FinishedSegments finished_;
  std::optional<TargetSegments> known_;  // nothing: must be listed

  Mutex mutex_;
  CopyProgress progress_ CAIRN_GUARDED_BY(mutex_);
  size_t next_segment_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::kv::internal
