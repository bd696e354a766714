#pragma once
/// What mesh_program's "loop" saves, for the test that checks it afterwards.

#include <memory>

#include "tests/core/sharded_state.h"

namespace cairn::core::testing {

/// The tensors of a step, a function of (step, seed), and their layout on `world` ranks.
struct LoopStep {
  LoopStep(uint64_t step, uint64_t seed, uint32_t world) {
    const auto byte = static_cast<uint8_t>(step * 31 + seed);
    globals.push_back({"rows", TestTensor(DType::kFloat32, {101, 13}, byte)});
    globals.push_back({"plain", TestTensor(DType::kUInt8, {9'001}, byte)});
    globals.push_back({"frozen", TestTensor(DType::kInt16, {501, 3}, 1)});
    const auto mesh = std::make_shared<const DeviceMesh>(*DeviceMesh::Make({{"dp", world}}));
    layouts.push_back({.mesh = mesh, .placements = {Placement::Shard(0)}, .boxes = {}});
    layouts.push_back({.mesh = nullptr, .placements = {}, .boxes = {}, .plain = true});
    layouts.push_back({.mesh = mesh, .placements = {Placement::Shard(0)}, .boxes = {}});
  }

  std::vector<GlobalTensor> globals;
  std::vector<Layout> layouts;
};

}  // namespace cairn::core::testing
