// Places of ranks among those that hold the same.

#include "core/internal/replica_group.h"

namespace cairn::core::internal {

ReplicaGroup ReplicaGroup::Of(const Sharding& sharding) {
  ReplicaGroup group{.mesh = sharding.mesh.get(), .dims = 0};
  if (group.mesh == nullptr) return group;
  for (size_t d = 0; d < sharding.placements.size(); ++d) {
    // Along a dimension of size 1 nothing is replicated or cut, whatever its placement is called.
    if (sharding.placements[d].kind == Placement::Kind::kReplicate &&
        group.mesh->dims()[d].size > 1) {
      group.dims |= 1ull << d;
    }
  }
  return group;
}

ReplicaGroup ReplicaGroup::Whole(const DeviceMesh& mesh) {
  return {.mesh = &mesh, .dims = (1ull << mesh.dims().size()) - 1};
}

ReplicaGroup::Place ReplicaGroup::PlaceOf(uint32_t rank) const {
  Place place{.lowest_rank = rank};
  if (dims == 0) return place;
  auto coordinate = mesh->CoordinateOf(rank);
  CAIRN_CHECK(coordinate.has_value());
  for (size_t d = 0; d < mesh->dims().size(); ++d) {
    if ((dims >> d & 1) == 0) continue;
    place.index = place.index * mesh->dims()[d].size + (*coordinate)[d];
    place.size *= mesh->dims()[d].size;
    (*coordinate)[d] = 0;
  }
  place.lowest_rank = mesh->RankAt(*coordinate);
  return place;
}

}  // namespace cairn::core::internal
