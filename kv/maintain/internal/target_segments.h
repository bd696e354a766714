#pragma once
/// The segments of a store: segments that its steps use, and announced segments.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kv/base/error.h"
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
  /// announced segment is verified, except for its payload. kConflict: a step of the target uses
  /// another segment with this id.
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

}  // namespace cairn::kv::internal
