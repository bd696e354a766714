#pragma once
// SPDX-License-Identifier: Apache-2.0
/// N-dimensional grids of ranks with named dimensions: the DeviceMesh of PyTorch.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/error.h"

namespace cairn::core {

/// Assigns a rank to each position of a grid. Positions are numbered in row-major order: the last
/// dimension varies fastest.
///
/// Threads: safe; a mesh is immutable.
class DeviceMesh {
 public:
  struct Dim {
    std::string name;  // "dp", "tp"; may be empty
    uint32_t size = 0;
  };
  static constexpr uint64_t kMaxRanks = 1ull << 24;

  /// `ranks` contains the rank of each position; if it is empty, rank i is at position i. A mesh
  /// without dimensions has one position.
  /// kInvalidArgument: a dimension has size 0, two dimensions have one name, a rank is at two
  /// positions, there are more than kMaxRanks positions, or `ranks` does not have one rank per
  /// position.
  static Result<DeviceMesh> Make(std::vector<Dim> dims, std::vector<uint32_t> ranks = {});

  const std::vector<Dim>& dims() const { return dims_; }
  /// Number of positions.
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  /// Ranks, by position.
  const std::vector<uint32_t>& ranks() const { return ranks_; }

  /// One index per dimension; nothing if the mesh does not contain the rank.
  std::optional<std::vector<uint32_t>> CoordinateOf(uint32_t rank) const;
  /// Requires one index per dimension, each less than the size of the dimension.
  uint32_t RankAt(std::span<const uint32_t> coordinate) const;

  /// The ranks whose coordinates equal the coordinates of `rank` except in the dimensions `along`,
  /// in the order of their positions; `rank` is one of them. Requires that the mesh contains
  /// `rank`.
  std::vector<uint32_t> GroupOf(uint32_t rank, std::span<const size_t> along) const;

  /// True if the meshes have the same ranks at the same coordinates, whatever the names of their
  /// dimensions.
  bool IsSame(const DeviceMesh& other) const;

 private:
  DeviceMesh() = default;

  std::vector<Dim> dims_;
  std::vector<uint32_t> ranks_;  // by position
  // (rank, position), ascending; empty if rank i is at position i.
  std::vector<std::pair<uint32_t, uint32_t>> position_by_rank_;
};

}  // namespace cairn::core
