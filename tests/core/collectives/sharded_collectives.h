#pragma once
/// Random gathers and broadcasts for the ranks of any communicator, with their expected results.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/collectives/state_dict_collectives.h"
#include "tests/core/sharded_state.h"

namespace cairn::core::testing {

/// One leaf, and the part of it that each rank has.
struct ShardedCase {
  /// Appends what `rank` has of the leaf; without memory, its views are null.
  void AppendTo(StateDict::Builder builder, uint32_t rank, bool with_memory = true) const {
    if (value) {
      builder.Value(global.fqn, int64_t{rank});
      return;
    }
    TensorView view = locals[rank].view();
    Sharding sharding = locals[rank].sharding();
    if (!with_memory) {
      view = {.dtype = view.dtype, .shape = view.shape};
      for (auto& part : sharding.parts) {
        part.view = {.dtype = view.dtype, .shape = part.view.shape};
      }
    }
    if (layout.plain) {
      builder.Tensor(global.fqn, view);
    } else {
      builder.Sharded(global.fqn, view, std::move(sharding));
    }
  }

  GlobalTensor global;  // the reference
  bool value = false;   // the leaf is the number of the rank
  Layout layout;
  std::vector<LocalTensor> locals;  // by rank
  std::vector<bool> present;        // by rank: the rank has the key
};

/// Returns leaves whose local tensors have no contents yet.
inline std::vector<ShardedCase> RandomCases(cairn::testing::SeededRandom& random,
                                            uint32_t world_size) {
  const DType dtypes[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kInt64,
                          DType::kComplex128};
  std::vector<ShardedCase> cases;
  const uint64_t count = random.Between(0, 5);
  for (uint64_t i = 0; i < count; ++i) {
    Shape shape(random.Between(0, 3));
    for (uint64_t& size : shape) size = random.Chance(0.07) ? 0 : random.Between(1, 6);
    ShardedCase& leaf = cases.emplace_back(ShardedCase{
        .global = {fmt::format("k{}", i),
                   TestTensor(dtypes[random.Between(0, 4)], shape, static_cast<uint8_t>(1 + i))}});
    leaf.value = random.Chance(0.1);
    leaf.layout = RandomLayout(
        shape, RandomMesh(static_cast<uint32_t>(random.Between(1, world_size)), random), random);
    // Keys that some ranks lack; a mesh needs all of its ranks, boxes the ranks that hold some.
    const bool some_lack_it = random.Chance(0.3);
    const auto& [mesh, placements, boxes, plain] = leaf.layout;
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      leaf.locals.emplace_back(leaf.global.tensor, leaf.layout, rank, random.Between(0, 2));
      const bool needed =
          !leaf.value &&
          ((mesh != nullptr && mesh->CoordinateOf(rank)) ||
           std::ranges::any_of(boxes, [&](const auto& box) { return box.second == rank; }));
      leaf.present.push_back(needed || !some_lack_it || random.Chance(0.5));
    }
  }
  return cases;
}

/// Buffer sizes from the minimum to one that contains everything.
inline uint64_t RandomBufferBytes(cairn::testing::SeededRandom& random, uint32_t world_size) {
  if (random.Chance(0.2)) return kDefaultBufferBytes;
  return 4 * world_size + random.Between(0, 1) * random.Between(0, 1000);
}

/// Returns the index of leaf `key` of the state, or -1.
inline int64_t FindLeaf(const StateDict& state, const std::string& fqn) {
  const auto leaves = FlattenTree(state.tree);
  for (size_t i = 0; leaves && i < leaves->size(); ++i) {
    if ((*leaves)[i].fqn == fqn) return static_cast<int64_t>(i);
  }
  return -1;
}

/// A gather, and the expected result on each rank.
class GatherScenario {
 public:
  GatherScenario(cairn::testing::SeededRandom& random, uint32_t world_size)
      : cases_(RandomCases(random, world_size)) {
    for (ShardedCase& leaf : cases_) {
      const TestTensor& global = leaf.global.tensor;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        // Tensors that are not sharded differ between the ranks.
        leaf.locals[rank].FillFrom(
            leaf.layout.plain ? TestTensor(global.dtype, global.shape, SeedOf(rank)) : global,
            rank);
      }
    }
    options_.cpu_offload = random.Chance(0.5);
    options_.buffer_bytes = RandomBufferBytes(random, world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      if (random.Chance(0.3)) options_.ranks_only.push_back(static_cast<int>(rank));
    }
    if (random.Chance(0.5)) options_.ranks_only.clear();
  }

  void RunRank(Communicator& communicator) const {
    const auto rank = static_cast<uint32_t>(communicator.rank());
    StateDict state;
    for (const ShardedCase& leaf : cases_) {
      if (leaf.present[rank]) leaf.AppendTo(state.root(), rank);
    }
    GatherOptions options = options_;
    TransferReport report;
    options.report = &report;
    CAIRN_ASSERT_OK_AND_ASSIGN(const HostState result,
                               GatherStateDict(state, communicator, options));
    EXPECT_LE(report.peak_buffer_bytes, options.buffer_bytes);
    const auto& only = options.ranks_only;
    if (!only.empty() && std::ranges::find(only, communicator.rank()) == only.end()) {
      EXPECT_EQ(result.state().tree, StateDict().tree);
      EXPECT_EQ(report.received_bytes, 0u);
      return;
    }
    EXPECT_EQ(result.state().tree, state.tree);
    EXPECT_TRUE(result.state().shardings.empty());
    for (const ShardedCase& leaf : cases_) {
      if (leaf.present[rank]) CheckLeaf(leaf, rank, result.state());
    }
  }

 private:
  static uint8_t SeedOf(uint32_t rank) { return static_cast<uint8_t>(100 + rank); }

  void CheckLeaf(const ShardedCase& leaf, uint32_t rank, const StateDict& result) const {
    SCOPED_TRACE(leaf.global.fqn);
    const uint32_t slot = result.slot[static_cast<size_t>(FindLeaf(result, leaf.global.fqn))];
    if (leaf.value) {
      ASSERT_EQ(result.values[slot], Value(int64_t{rank}));
      return;
    }
    const TestTensor& global = leaf.global.tensor;
    const TensorView& found = result.tensors[slot];
    ASSERT_EQ(found.dtype, global.dtype);
    ASSERT_EQ(found.shape, global.shape);
    const bool plain = leaf.layout.plain;
    ASSERT_TRUE(HoldsPartsOf(plain ? TestTensor(global.dtype, global.shape, SeedOf(rank)) : global,
                             {{.box = WholeBox(found.shape), .view = found}}));
    if (plain && !global.bytes.empty()) {
      EXPECT_EQ(found.data == leaf.locals[rank].view().data, !options_.cpu_offload);
    }
  }

  std::vector<ShardedCase> cases_;
  GatherOptions options_;
};

/// A broadcast of a full state to targets, and the expected result on each rank.
class BroadcastScenario {
 public:
  BroadcastScenario(cairn::testing::SeededRandom& random, uint32_t world_size)
      : cases_(RandomCases(random, world_size)) {
    for (size_t i = 0; i < cases_.size(); ++i) {
      in_full_.push_back(random.Chance(0.8));
      std::vector<bool>& has_memory = has_memory_.emplace_back();
      for (uint32_t rank = 0; rank < world_size; ++rank) has_memory.push_back(random.Chance(0.5));
    }
    options_.strict = random.Chance(0.5);
    options_.cpu_offload = random.Chance(0.3);
    options_.buffer_bytes = RandomBufferBytes(random, world_size);
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (!in_full_[i]) continue;
      const GlobalTensor& global = cases_[i].global;
      if (cases_[i].value) {
        full_.root().Value(global.fqn, std::string("from rank 0"));
      } else {
        full_.root().Tensor(global.fqn, global.tensor.view());
      }
    }
    full_.root().Tensor("extra", extra_.view());  // no target has this key
  }

  void RunRank(Communicator& communicator) {
    const auto rank = static_cast<uint32_t>(communicator.rank());
    StateDict target = TargetOf(rank);
    BroadcastOptions options = options_;
    TransferReport report;
    options.report = &report;
    CAIRN_ASSERT_OK_AND_ASSIGN(const HostState result,
                               BroadcastStateDict(rank == 0 ? full_ : StateDict(),
                                                  StateTarget(target), communicator, options));
    EXPECT_LE(report.peak_buffer_bytes, options.buffer_bytes);
    EXPECT_EQ(report.received_bytes, rank == 0 ? 0 : BytesFor(rank));
    Check(rank, result.state());
  }

  void DistributeOn(uint32_t rank) {
    StateDict target = TargetOf(rank);
    CAIRN_ASSERT_OK_AND_ASSIGN(const HostState result,
                               DistributeStateDict(full_, StateTarget(target), rank, options_));
    Check(rank, result.state());
  }

 private:
  StateDict TargetOf(uint32_t rank) const {
    StateDict target;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].present[rank]) {
        cases_[i].AppendTo(target.root(), rank, has_memory_[i][rank]);
      }
    }
    return target;
  }

  // The number of bytes of the full state that the rank holds.
  uint64_t BytesFor(uint32_t rank) const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (!in_full_[i] || !cases_[i].present[rank] || cases_[i].value) continue;
      for (const ShardView& piece : cases_[i].locals[rank].Pieces(rank)) {
        bytes += *TensorBytes(piece.view.dtype, piece.box.sizes);
      }
    }
    return bytes;
  }

  void Check(uint32_t rank, const StateDict& result) const {
    size_t leaves = 0;
    for (size_t i = 0; i < cases_.size(); ++i) {
      const ShardedCase& leaf = cases_[i];
      SCOPED_TRACE(leaf.global.fqn);
      const int64_t found = FindLeaf(result, leaf.global.fqn);
      const bool expected = leaf.present[rank] && (in_full_[i] || !options_.strict);
      ASSERT_EQ(found >= 0, expected);
      if (!expected) continue;
      ++leaves;
      const uint32_t slot = result.slot[static_cast<size_t>(found)];
      if (leaf.value) {
        const Value value = in_full_[i] ? Value(std::string("from rank 0")) : Value(int64_t{rank});
        ASSERT_EQ(result.values[slot], value);
        continue;
      }
      const TensorView& view = result.tensors[slot];
      const Sharding* sharding = leaf.layout.plain ? nullptr : &result.shardings.at(slot);
      if (!in_full_[i] && !has_memory_[i][rank]) {  // nothing is written to it
        ASSERT_EQ(view.data, nullptr);
        continue;
      }
      CheckPieces(i, leaf.locals[rank].Pieces(rank), PiecesOf(sharding, view, rank),
                  has_memory_[i][rank]);
    }
    ASSERT_EQ(result.slot.size(), leaves);
  }

  void CheckPieces(size_t i, const std::vector<ShardView>& of_target,
                   const std::vector<ShardView>& found, bool has_memory) const {
    ASSERT_EQ(found.size(), of_target.size());
    for (size_t p = 0; p < found.size(); ++p) {
      ASSERT_EQ(found[p].view.shape, of_target[p].view.shape);
      if (*ElementCount(found[p].view.shape) == 0) continue;
      ASSERT_EQ(found[p].view.data == of_target[p].view.data,
                has_memory && !(in_full_[i] && options_.cpu_offload));
    }
    if (in_full_[i]) {
      ASSERT_TRUE(HoldsPartsOf(cases_[i].global.tensor, found));
    }
  }

  std::vector<ShardedCase> cases_;
  std::vector<std::vector<bool>> has_memory_;  // by case, by rank
  std::vector<bool> in_full_;                  // by case
  TestTensor extra_{DType::kInt32, {3}};
  StateDict full_;
  BroadcastOptions options_;
};

}  // namespace cairn::core::testing
