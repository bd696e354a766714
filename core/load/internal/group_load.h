#pragma once
/// The boxes that all ranks of a group need: which rank reads which of them, and how it sends them
/// to the others.

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/load/load_options.h"
#include "core/ranks/communicator.h"
#include "core/ranks/internal/round_mover.h"
#include "core/tensor/internal/replica_group.h"
#include "core/tensor/tensor.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {

/// A box that all ranks of a group need and one of them reads.
struct GroupItem {
  const std::string* fqn = nullptr;
  Box box;
  TensorTarget target;  // target of the box
  uint64_t bytes = 0;
};

/// Returns the memory of a target as a view of the bytes that it contains.
inline TensorView AsView(const TensorTarget& target) {
  return {target.dtype, target.shape, target.strides, target.data, target.device};
}

/// The load of one group of ranks, which read items and send them to each other. The items are
/// divided into windows, which are read and sent one after another, and each window into one share
/// per rank. All ranks of the group add the same items and divide them in the same way. Threads:
/// one at a time.
class GroupLoad {
 public:
  GroupLoad(const ReplicaGroup& group, uint32_t rank) : place_(group.MembershipOf(rank)) {}

  const ReplicaGroup::Membership& place() const { return place_; }
  void Add(GroupItem item) { items_.push_back(std::move(item)); }
  /// Bytes that each rank of the group reads, on average.
  uint64_t share_bytes() const;

  /// Call once, after the last Add. Requires `window_count > 0`.
  void Divide(uint64_t window_count);

  // After Divide:

  void AddOwnRequests(uint64_t window, std::vector<LoadRequest>& requests) const;

  /// Checks that all ranks of the group have planned the same items. Collective over the group.
  /// kInvalidArgument: they have not.
  Result<void> CheckAgreed(Communicator& group, const kv::StepInfo& step) const;

  void AddDevices(std::set<int>& devices) const;

  /// Sends this rank's share of a window to the group and receives the shares of the others.
  /// Collective over the group. Requires a mover with a buffer of at least max(buffer_bytes, one
  /// byte per rank).
  Result<void> Exchange(uint64_t window, Communicator& group, RoundMover& mover,
                        uint64_t buffer_bytes) const;

 private:
  std::span<const GroupItem> ShareOfMember(uint64_t window, uint64_t member) const;

  const ReplicaGroup::Membership place_;
  std::vector<GroupItem> items_;
  // First item of each member's share of each window, in this order, and the end.
  std::vector<size_t> begins_;
};

}  // namespace cairn::core::internal
