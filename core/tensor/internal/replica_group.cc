#include "core/tensor/internal/replica_group.h"

#include <algorithm>

namespace cairn::core::internal {

const DeviceMesh* EqualMeshes::Find(const DeviceMesh* mesh) {
  const auto [found, is_new] = known_.try_emplace(mesh, mesh);
  if (!is_new) return found->second;
  for (const DeviceMesh* other : distinct_) {
    if (mesh->IsSame(*other)) {
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
  const size_t dims = std::min(sharding.placements.size(), group.mesh->dims().size());
  for (size_t d = 0; d < dims; ++d) {
    // Along a dimension of size 1 nothing is replicated, whatever its placement.
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

ReplicaGroup::Membership ReplicaGroup::MembershipOf(uint32_t rank) const {
  Membership membership{.lowest_rank = rank};
  if (dims == 0) return membership;
  auto coordinate = mesh->CoordinateOf(rank);
  CAIRN_CHECK(coordinate.has_value());
  for (size_t d = 0; d < mesh->dims().size(); ++d) {
    if ((dims >> d & 1) == 0) continue;
    membership.index = membership.index * mesh->dims()[d].size + (*coordinate)[d];
    membership.size *= mesh->dims()[d].size;
    (*coordinate)[d] = 0;
  }
  membership.lowest_rank = mesh->RankAt(*coordinate);
  return membership;
}

}  // namespace cairn::core::internal
