#pragma once
/// N-d grids of ranks with named dimensions: PyTorch's DeviceMesh.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/error.h"

namespace cairn::core {

/// Which rank stands where. Places are numbered row-major: the last dimension runs fastest.
///
/// Threads: immutable once made.
class DeviceMesh {
 public:
  struct Dim {
    std::string name;  // "dp", "tp"; may be empty
    uint32_t size = 0;
  };
  static constexpr uint64_t kMaxRanks = 1ull << 24;

  /// `ranks` names the rank of each place; without it rank i stands at place i. A mesh without
  /// dimensions has one place.
  /// kInvalidArgument: a dimension of size 0, a name or a rank twice, more than kMaxRanks places,
  /// or not one rank a place.
  static Result<DeviceMesh> Make(std::vector<Dim> dims, std::vector<uint32_t> ranks = {});

  const std::vector<Dim>& dims() const { return dims_; }
  /// Number of places.
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  /// By place.
  const std::vector<uint32_t>& ranks() const { return ranks_; }

  /// One number a dimension; nothing if the rank is not of the mesh.
  std::optional<std::vector<uint32_t>> CoordinateOf(uint32_t rank) const;
  /// Requires one number a dimension, each below the dimension's size.
  uint32_t RankAt(std::span<const uint32_t> coordinate) const;
  /// kInvalidArgument: no dimension has this name.
  Result<size_t> FindDim(std::string_view name) const;

  /// The ranks whose coordinates differ from `rank`'s in the dimensions `along` only, itself among
  /// them, in the order of their places. Requires a rank of the mesh.
  std::vector<uint32_t> GroupOf(uint32_t rank, std::span<const size_t> along) const;

 private:
  DeviceMesh() = default;

  std::vector<Dim> dims_;
  std::vector<uint32_t> ranks_;                               // by place
  std::vector<std::pair<uint32_t, uint32_t>> place_by_rank_;  // ascending; none: places are ranks
};

}  // namespace cairn::core
