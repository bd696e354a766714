#pragma once
/// The group of ranks that hold the same boxes of a tensor.

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/tensor/sharding.h"

namespace cairn::core::internal {

class EqualMeshes;

/// The ranks along the dimensions of a mesh in which a tensor is replicated. There are none if the
/// tensor is divided along all dimensions: each box is then held by one rank.
struct ReplicaGroup {
  const DeviceMesh* mesh = nullptr;
  uint64_t dims = 0;  // bit d: the tensor is replicated along mesh dimension d
  friend auto operator<=>(const ReplicaGroup&, const ReplicaGroup&) = default;

  /// The result is unspecified for placements that ShardOf rejects.
  static ReplicaGroup Of(const Sharding& sharding, EqualMeshes& meshes);
  /// All ranks of the mesh.
  static ReplicaGroup Whole(const DeviceMesh& mesh);

  /// One rank of the group. Members are numbered in the order of their positions on the mesh.
  struct Membership {
    uint64_t index = 0;
    uint64_t size = 1;         // members of the group
    uint32_t lowest_rank = 0;  // the member whose coordinates in `dims` are all 0
  };
  /// Requires that the mesh contains `rank`, unless `dims` is 0.
  Membership MembershipOf(uint32_t rank) const;
};

/// Maps equal meshes to one object, so that all ranks group tensors in the same way although they
/// may have different numbers of objects for the same mesh. Names of dimensions are ignored.
class EqualMeshes {
 public:
  /// Returns the first mesh passed that equals this one. All meshes passed must outlive the
  /// results.
  const DeviceMesh* Find(const DeviceMesh* mesh);

 private:
  std::vector<const DeviceMesh*> distinct_;
  std::map<const DeviceMesh*, const DeviceMesh*> known_;
};

/// Returns which of `members` equal shares of `total_bytes` contains byte `position`. Requires
/// total_bytes > 0.
inline uint64_t ShareOf(uint64_t position, uint64_t total_bytes, uint64_t members) {
  __extension__ typedef unsigned __int128 Wide;  // bytes times ranks
  return static_cast<uint64_t>(Wide{position} * members / total_bytes);
}

}  // namespace cairn::core::internal
