// Places of ranks among those that hold the same.

#include "core/sharding/internal/replica_group.h"

#include <algorithm>

namespace cairn::core::internal {

const DeviceMesh* EqualMeshes::Find(const DeviceMesh* mesh) {
  const auto [found, is_new] = known_.try_emplace(mesh, mesh);
  if (!is_new) return found->second;
  for (const DeviceMesh* other : distinct_) {
    if (mesh->ranks() == other->ranks() &&
        std::ranges::equal(mesh->dims(), other->dims(), {}, &DeviceMesh::Dim::size,
                           &DeviceMesh::Dim::size)) {
      found->second = other;
      return other;
    }
  }
  distinct_.push_back(mesh);
  return mesh;
}

ReplicaGroup ReplicaGroup::Of(const Sharding& sharding, EqualMeshes& meshes) {
  ReplicaGroup group;
  if (sharding.mesh == nullptr) return group;
  group.mesh = meshes.Find(sharding.mesh.get());
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
