#include "core/tensor/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace cairn::core {
namespace {

// Sets of dimensions are the bits of a number (ReplicaGroup).
constexpr size_t kMaxDims = 63;

std::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace

Result<DeviceMesh> DeviceMesh::Make(std::vector<Dim> dims, std::vector<uint32_t> ranks) {
  if (dims.size() > kMaxDims) {
    return Invalid(
        fmt::format("the mesh has {} dimensions; the most is {}", dims.size(), kMaxDims));
  }
  uint64_t position_count = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].size == 0) {
      return Invalid(fmt::format("dimension {} ('{}') of the mesh has size 0; give at least 1", d,
                                 dims[d].name));
    }
    for (size_t other = 0; other < d; ++other) {
      if (!dims[d].name.empty() && dims[other].name == dims[d].name) {
        return Invalid(
            fmt::format("two dimensions of the mesh are named '{}'; rename one", dims[d].name));
      }
    }
    position_count *= dims[d].size;  // at most kMaxRanks times 2^32
    if (position_count > kMaxRanks) {
      return Invalid(fmt::format("the mesh has more than {} positions", kMaxRanks));
    }
  }
  DeviceMesh mesh;
  mesh.dims_ = std::move(dims);
  if (ranks.empty()) {
    mesh.ranks_.resize(position_count);
    std::iota(mesh.ranks_.begin(), mesh.ranks_.end(), 0u);
    return mesh;
  }
  if (ranks.size() != position_count) {
    return Invalid(fmt::format("{} ranks for a mesh of {} positions; give one for each position",
                               ranks.size(), position_count));
  }
  mesh.ranks_ = std::move(ranks);
  for (uint32_t position = 0; position < position_count; ++position) {
    mesh.position_by_rank_.emplace_back(mesh.ranks_[position], position);
  }
  std::ranges::sort(mesh.position_by_rank_);
  const auto twice =
      std::ranges::adjacent_find(mesh.position_by_rank_, {}, &std::pair<uint32_t, uint32_t>::first);
  if (twice != mesh.position_by_rank_.end()) {
    return Invalid(
        fmt::format("rank {} is at two positions of the mesh; name each rank once", twice->first));
  }
  return mesh;
}

std::optional<std::vector<uint32_t>> DeviceMesh::CoordinateOf(uint32_t rank) const {
  uint32_t position = rank;
  if (!position_by_rank_.empty()) {
    const auto found = std::ranges::lower_bound(position_by_rank_, rank, {},
                                                &std::pair<uint32_t, uint32_t>::first);
    if (found == position_by_rank_.end() || found->first != rank) return std::nullopt;
    position = found->second;
  }
  if (position >= size()) return std::nullopt;
  std::vector<uint32_t> coordinate(dims_.size());
  for (size_t d = dims_.size(); d-- > 0;) {
    coordinate[d] = position % dims_[d].size;
    position /= dims_[d].size;
  }
  return coordinate;
}

uint32_t DeviceMesh::RankAt(std::span<const uint32_t> coordinate) const {
  CAIRN_CHECK(coordinate.size() == dims_.size());
  uint32_t position = 0;
  for (size_t d = 0; d < dims_.size(); ++d) {
    CAIRN_CHECK(coordinate[d] < dims_[d].size);
    position = position * dims_[d].size + coordinate[d];
  }
  return ranks_[position];
}

std::vector<uint32_t> DeviceMesh::GroupOf(uint32_t rank, std::span<const size_t> along) const {
  const auto own = CoordinateOf(rank);
  CAIRN_CHECK(own.has_value());
  const auto is_in_group = [&](uint32_t other) {
    const auto coordinate = CoordinateOf(other);
    for (size_t d = 0; d < dims_.size(); ++d) {
      if ((*coordinate)[d] != (*own)[d] && std::ranges::find(along, d) == along.end()) return false;
    }
    return true;
  };
  std::vector<uint32_t> group;
  std::ranges::copy_if(ranks_, std::back_inserter(group), is_in_group);
  return group;
}

bool DeviceMesh::IsSame(const DeviceMesh& other) const {
  return this == &other || (ranks_ == other.ranks_ &&
                            std::ranges::equal(dims_, other.dims_, {}, &Dim::size, &Dim::size));
}

}  // namespace cairn::core
