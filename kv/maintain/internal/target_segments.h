#pragma once
/// The segments of the target of a copy: those that it has, and those that the copy has finished.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kv/base/copy_options.h"
#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Threads: one.
class TargetSegments {
 public:
  /// Lists the segments of the newest root of `target`, which outlives this object.
  /// `announcement_count` is the number of announcements by this process so far. kDataLoss,
  /// kUnavailable: the entry or the usage of a step cannot be read. Cost: reads all pages, and for
  /// each step of more than 16 segments a table.
  static Result<TargetSegments> List(StoreState& target, uint64_t announcement_count);

  /// Returns whether nothing was committed since, except for AddStep and announcements.
  bool IsCurrent(uint64_t announcement_count) const;
  /// Records that a new step was committed.
  void AddStep(uint64_t step, const std::vector<SegmentUse>& usage);

  /// Returns the target's segment with the contents of `source`; nothing if the target has none. An
  /// announced segment is verified, except for its payload. kConflict: the target has
  /// another segment to which records would refer by the same 64 bits.
  struct Found {
    SegmentInfo info;
    std::optional<std::chrono::nanoseconds> announced_age;  // nothing: a step uses it
  };
  Result<std::optional<Found>> Find(const SegmentInfo& source) const;

  /// Returns the step of the target that uses most of the bytes of `usage`, in segments that it has
  /// in common with other steps only if it is the newest of them; nothing if no step uses any.
  std::optional<uint64_t> FindBase(const std::vector<SegmentUse>& usage) const;

 private:
  struct Known {
    ObjectId id;
    std::optional<uint64_t> newest_step;  // nothing: announced
    int64_t announced_until_unix_ns = 0;
  };
  explicit TargetSegments(StoreState& target) : target_(&target) {}
  Result<std::optional<Found>> FindInStep(uint64_t step, const SegmentInfo& source) const;
  std::optional<Found> FindAnnounced(const Known& known, const SegmentInfo& source) const;

  StoreState* target_;
  uint64_t commit_count_ = 0;        // commits of the target, without announcements by this process
  std::map<uint64_t, Known> known_;  // by segment id
};

/// kConflict: the target has another segment with the 64 bits by which the records of a copied step
/// would refer to `source`.
Error OtherSegment(const StoreState& target, const SegmentInfo& source);

/// Segments that a copier has finished, and that no step reaches yet.
///
/// The segments of a step are copied before the step is committed, which may take hours. If the
/// copier is interrupted, the next open for writing removes what no root reaches. Therefore the
/// copier announces what it has finished from time to time (CommitActions::announced), and the next
/// copier finds it in the newest root.
///
/// Threads: all members are safe.
class FinishedSegments {
 public:
  /// Segments are announced when the first of them has waited for `keep_interval`, or all together
  /// have `keep_bytes`. Both arguments outlive it.
  FinishedSegments(StoreState& target, const CopyOptions& options)
      : target_(target), options_(options) {}

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
  Result<void> AnnounceAll(bool takes_epoch) CAIRN_REQUIRES(mutex_);

  StoreState& target_;
  const CopyOptions& options_;
  mutable Mutex mutex_;  // locked before the mutexes of target_
  std::map<uint64_t, Finished> segments_ CAIRN_GUARDED_BY(mutex_);
  uint64_t announcement_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::optional<Error> failure_ CAIRN_GUARDED_BY(mutex_);  // of which the outcome is unknown
};

}  // namespace cairn::kv::internal
