#pragma once
/// The ranks that hold the same boxes of a tensor, as one of them sees them.

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/sharding/sharding.h"

namespace cairn::core::internal {

class EqualMeshes;

/// Those along some dimensions of a mesh. A tensor that is cut along all of them has none: one rank
/// holds each box.
struct ReplicaGroup {
  const DeviceMesh* mesh = nullptr;
  uint64_t dims = 0;  // bit d: the tensor is the same along mesh dimension d
  friend auto operator<=>(const ReplicaGroup&, const ReplicaGroup&) = default;

  /// Requires a rank of the mesh, or a sharding by explicit boxes.
  static ReplicaGroup Of(const Sharding& sharding, EqualMeshes& meshes);
  /// All of the mesh.
  static ReplicaGroup Whole(const DeviceMesh& mesh);

  /// Members are numbered by their places on the mesh.
  struct Place {
    uint64_t index = 0;
    uint64_t size = 1;
    uint32_t lowest_rank = 0;  // of the members at the place where all of `dims` are 0
  };
  Place PlaceOf(uint32_t rank) const;
};

/// One mesh for all that are equal, whatever objects they are: ranks may differ in how many objects
/// they make for the same mesh, and must group tensors alike all the same. Names do not count.
class EqualMeshes {
 public:
  /// The first mesh that was asked for and equals this one. All must outlive the use of the result.
  const DeviceMesh* Find(const DeviceMesh* mesh);

 private:
  std::vector<const DeviceMesh*> distinct_;
  std::map<const DeviceMesh*, const DeviceMesh*> known_;
};

/// Which of `members` equal shares of `total` bytes holds byte `position`.
inline uint64_t ShareOf(uint64_t position, uint64_t total, uint64_t members) {
  __extension__ typedef unsigned __int128 Wide;  // bytes times ranks
  return static_cast<uint64_t>(Wide{position} * members / total);
}

}  // namespace cairn::core::internal
