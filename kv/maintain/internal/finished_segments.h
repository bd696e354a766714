#pragma once
/// Segments that a copier has finished, and that no step reaches yet.
///
/// The segments of a step are copied before the step is committed, which may take hours. If the
/// copier is interrupted, the next open for writing removes what no root reaches. Therefore the
/// copier announces what it has finished from time to time (CommitAnnouncement), and the next
/// copier finds it in the newest root.

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/step_info.h"
#include "kv/base/thread_annotations.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Threads: all members are safe.
class FinishedSegments {
 public:
  /// When segments are announced: when the first of them has waited for `interval`, or all together
  /// have `bytes`.
  struct Limits {
    std::chrono::milliseconds interval;
    uint64_t bytes = 0;
  };
  FinishedSegments(StoreState& target, const Limits& limits) : target_(target), limits_(limits) {}

  /// Adds a segment that was copied.
  void Add(const SegmentInfo& info);
  /// Adds a segment that an earlier copier has announced, `age` ago.
  void AddAnnounced(const SegmentInfo& info, std::chrono::nanoseconds age);
  /// Returns those segments, by id.
  std::map<uint64_t, SegmentInfo> all() const;
  /// Announces the segments if one of the limits is reached, or if an announcement ends in less
  /// than half of kAnnouncedFor. kUnavailable, kResourceExhausted, kConflict: see CommitChange.
  Result<void> AnnounceIfDue();
  /// Announces all segments that are not, so that another copier continues with them.
  Result<void> Announce();
  /// Announces all segments in a root with the next epoch of the target. Copies have its names for
  /// themselves.
  Result<void> TakeEpoch();
  /// Forgets the segments that a step reaches from now on.
  void Release(const std::vector<SegmentUse>& usage);
  /// Number of roots that Announce, AnnounceIfDue and TakeEpoch have committed.
  uint64_t announcement_count() const;
  /// Removes the segments that are not announced, unless a root that announces them may exist.
  void RemoveUnannounced();

 private:
  using Clock = std::chrono::steady_clock;
  struct Finished {
    SegmentInfo info;
    bool is_announced = false;
    Clock::time_point since;  // when it was announced or, if it is not, finished
  };
  bool IsDue(Clock::time_point now) const CAIRN_REQUIRES(mutex_);
  Result<void> AnnounceLocked(bool takes_epoch = false) CAIRN_REQUIRES(mutex_);

  StoreState& target_;
  const Limits limits_;
  mutable Mutex mutex_;  // locked before the mutexes of target_
  std::map<uint64_t, Finished> segments_ CAIRN_GUARDED_BY(mutex_);
  uint64_t announcement_count_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::kv::internal
