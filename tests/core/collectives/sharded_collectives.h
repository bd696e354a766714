#pragma once
/// Random gathers and broadcasts for the ranks of any communicator, with their expected results.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/collectives/state_dict_collectives.h"
#include "tests/core/sharded_state.h"
#include "tests/support/checked_communicator.h"

namespace cairn::core::testing {

/// One leaf, and the part of it that each rank has.
struct ShardedCase {
  /// Appends what `rank` has of the leaf.
  void AppendTo(StateDict::Builder builder, uint32_t rank) const {
    if (value) {
      builder.Value(global.fqn, int64_t{rank});
    } else if (layout.plain) {
      builder.Tensor(global.fqn, locals[rank].view());
    } else {
      builder.Sharded(global.fqn, locals[rank].view(), locals[rank].sharding());
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

/// Returns true if a local tensor has the zeros with which it was created.
inline bool IsUntouched(const LocalTensor& local, const TestTensor& global, uint32_t rank) {
  TestTensor zeros = global;
  std::ranges::fill(zeros.bytes, std::byte{0});
  return local.Equals(zeros, rank);
}

/// A gather, and the expected result on each rank.
class GatherScenario {
 public:
  GatherScenario(cairn::testing::SeededRandom& random, uint32_t world_size)
      : cases_(RandomCases(random, world_size)) {
    for (ShardedCase& leaf : cases_) {
      std::vector<LocalTensor>& whole = wholes_.emplace_back();
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        leaf.locals[rank].FillFrom(leaf.global.tensor, rank);
        whole.emplace_back(leaf.global.tensor, Layout{.plain = true}, rank, random.Between(0, 2));
      }
    }
    options_.buffer_bytes = RandomBufferBytes(random, world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      if (random.Chance(0.3)) options_.ranks_only.push_back(static_cast<int>(rank));
    }
    if (random.Chance(0.5)) options_.ranks_only.clear();
  }

  void RunRank(Communicator& communicator) const {
    const auto rank = static_cast<uint32_t>(communicator.rank());
    StateDict state;
    StateDict whole;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].present[rank]) cases_[i].AppendTo(state.root(), rank);
      if (!cases_[i].value) whole.root().Tensor(cases_[i].global.fqn, wholes_[i][rank].view());
    }
    cairn::testing::CheckedCommunicator tensors(communicator);
    CollectiveOptions options = options_;
    options.tensor_communicator = &tensors;
    CAIRN_ASSERT_OK(GatherStateDict(state, StateTarget(whole), communicator, options));
    EXPECT_LE(tensors.largest_call_bytes(), options.buffer_bytes);
    const auto& only = options.ranks_only;
    const bool receives =
        only.empty() || std::ranges::find(only, communicator.rank()) != only.end();
    EXPECT_TRUE(receives || tensors.received_bytes() == 0);
    for (size_t i = 0; i < cases_.size(); ++i) {
      const ShardedCase& leaf = cases_[i];
      const TestTensor& global = leaf.global.tensor;
      SCOPED_TRACE(leaf.global.fqn);
      if (leaf.value) continue;
      if (receives && leaf.present[rank] && !leaf.layout.plain) {
        ASSERT_TRUE(wholes_[i][rank].Equals(global, rank));
      } else {
        ASSERT_TRUE(IsUntouched(wholes_[i][rank], global, rank));
      }
    }
  }

 private:
  std::vector<ShardedCase> cases_;
  std::vector<std::vector<LocalTensor>> wholes_;  // by case, by rank
  CollectiveOptions options_;
};

/// A broadcast of a full state to targets, and the expected result on each rank.
class BroadcastScenario {
 public:
  BroadcastScenario(cairn::testing::SeededRandom& random, uint32_t world_size)
      : cases_(RandomCases(random, world_size)) {
    buffer_bytes_ = RandomBufferBytes(random, world_size);
    for (const ShardedCase& leaf : cases_) {
      in_full_.push_back(random.Chance(0.8));
      if (!in_full_.back()) continue;
      if (leaf.value) {
        full_.root().Value(leaf.global.fqn, std::string("from rank 0"));
      } else {
        full_.root().Tensor(leaf.global.fqn, leaf.global.tensor.view());
      }
    }
    full_.root().Tensor("extra", extra_.view());  // no target has this key
  }

  void RunRank(Communicator& communicator) {
    const auto rank = static_cast<uint32_t>(communicator.rank());
    StateDict target = TargetOf(rank);
    cairn::testing::CheckedCommunicator tensors(communicator);
    CAIRN_ASSERT_OK(BroadcastStateDict(
        rank == 0 ? full_ : WithoutMemory(full_), StateTarget(target), communicator,
        {.buffer_bytes = buffer_bytes_, .tensor_communicator = &tensors}));
    EXPECT_LE(tensors.largest_call_bytes(), buffer_bytes_);
    EXPECT_EQ(tensors.received_bytes(), rank == 0 ? 0 : BytesFor(rank));
    Check(rank);
  }

  void DistributeOn(uint32_t rank) {
    StateDict target = TargetOf(rank);
    CAIRN_ASSERT_OK(DistributeStateDict(full_, StateTarget(target), rank));
    Check(rank);
  }

 private:
  StateDict TargetOf(uint32_t rank) const {
    StateDict target;
    for (const ShardedCase& leaf : cases_) {
      if (leaf.present[rank]) leaf.AppendTo(target.root(), rank);
    }
    return target;
  }

  bool IsFilled(size_t i, uint32_t rank) const {
    return in_full_[i] && cases_[i].present[rank] && !cases_[i].value;
  }

  // The number of bytes of the full state that the rank holds.
  uint64_t BytesFor(uint32_t rank) const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (!IsFilled(i, rank)) continue;
      for (const ShardView& piece : cases_[i].locals[rank].Pieces(rank)) {
        bytes += *TensorBytes(piece.view.dtype, piece.box.sizes);
      }
    }
    return bytes;
  }

  void Check(uint32_t rank) const {
    for (size_t i = 0; i < cases_.size(); ++i) {
      const TestTensor& global = cases_[i].global.tensor;
      const LocalTensor& local = cases_[i].locals[rank];
      SCOPED_TRACE(cases_[i].global.fqn);
      ASSERT_TRUE(IsFilled(i, rank) ? local.Equals(global, rank)
                                    : IsUntouched(local, global, rank));
    }
  }

  std::vector<ShardedCase> cases_;
  std::vector<bool> in_full_;  // by case
  TestTensor extra_{DType::kInt32, {3}};
  StateDict full_;
  uint64_t buffer_bytes_ = 0;
};

}  // namespace cairn::core::testing
