#pragma once
/// Random gathers and broadcasts for the ranks of any communicator, with their expected results.
/// The tensors are divided among the ranks element by element, independently of the implementation
/// of the collectives.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/collectives/state_dict_collectives.h"
#include "core/state_dict/state_dict.h"
#include "tests/core/tensor/strided_fixture.h"

namespace cairn::core {

/// A tensor of `shape` in memory with permuted dimensions and gaps, or row-major.
inline StridedTensor MakeStrided(testing::SeededRandom& random, DType dtype, const Shape& shape) {
  StridedTensor tensor{.dtype = dtype, .shape = shape, .strides = RowMajorStrides(shape)};
  uint64_t span = 1;
  if (random.Chance(0.5)) {
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Between(0, i - 1)]);
    }
    uint64_t stride = random.Chance(0.7) ? 1 : 2;
    for (const size_t d : order) {
      tensor.strides[d] = stride;
      stride = stride * std::max<uint64_t>(shape[d], 1) + random.Between(0, 2);
    }
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    span += (std::max<uint64_t>(shape[d], 1) - 1) * tensor.strides[d];
  }
  tensor.memory.resize(span * schema::ElementBytes(dtype));
  random.Fill(tensor.memory);
  return tensor;
}

/// One leaf, and the part of it that each rank has.
struct ShardedCase {
  enum class Kind { kWhole, kMesh, kBoxes, kValue };
  std::string key;
  Kind kind = Kind::kWhole;
  StridedTensor global;                         // the reference
  std::shared_ptr<const DeviceMesh> mesh;       // kMesh
  std::vector<Placement> placements;            // kMesh
  std::vector<std::pair<uint32_t, Box>> boxes;  // kBoxes: rank and box
  std::vector<bool> present;                    // by rank: the rank has the key

  /// Elements of the global tensor that `rank` holds: global index and index in the local tensor.
  struct Element {
    uint32_t rank;
    std::vector<uint64_t> global_index;
    std::vector<uint64_t> local_index;
  };
  std::vector<Element> Elements() const {
    std::vector<Element> elements;
    for (const uint32_t rank : mesh->ranks()) {
      const auto shard = ShardOf(global.shape, *mesh, placements, rank);
      EXPECT_TRUE(testing::IsOk(shard));
      for (const ShardBox& part : shard ? shard->Boxes() : std::vector<ShardBox>()) {
        ForEachIndex(part.box.sizes, [&](const std::vector<uint64_t>& index) {
          Element element{rank, part.box.offsets, part.local_offsets};
          for (size_t d = 0; d < index.size(); ++d) {
            element.global_index[d] += index[d];
            element.local_index[d] += index[d];
          }
          elements.push_back(std::move(element));
        });
      }
    }
    return elements;
  }
};

/// The memory of one rank's leaf; several tensors for explicit boxes.
struct LocalMemory {
  std::vector<StridedTensor> tensors;
};

inline std::byte* ElementAt(StridedTensor& tensor, const std::vector<uint64_t>& index) {
  return tensor.memory.data() + Dot(index, tensor.strides) * schema::ElementBytes(tensor.dtype);
}
inline const std::byte* ElementAt(const TensorView& view, const std::vector<uint64_t>& index) {
  const auto strides = view.strides.empty() ? RowMajorStrides(view.shape) : view.strides;
  return view.data + Dot(index, strides) * schema::ElementBytes(view.dtype);
}

inline Shape LocalShapeOf(const ShardedCase& leaf, uint32_t rank) {
  if (!leaf.mesh->CoordinateOf(rank)) return {0};
  return ShardOf(leaf.global.shape, *leaf.mesh, leaf.placements, rank)->sizes();
}

/// Returns what each rank holds, filled from the reference; by rank.
inline std::vector<LocalMemory> CutCase(testing::SeededRandom& random, const ShardedCase& leaf,
                                        uint32_t world_size) {
  using Kind = ShardedCase::Kind;
  std::vector<LocalMemory> memory(world_size);
  StridedTensor global = leaf.global;
  const uint64_t element_bytes = schema::ElementBytes(global.dtype);
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    if (leaf.kind == Kind::kWhole) {
      memory[rank].tensors = {MakeStrided(random, global.dtype, global.shape)};
    } else if (leaf.kind == Kind::kMesh) {
      memory[rank].tensors = {MakeStrided(random, global.dtype, LocalShapeOf(leaf, rank))};
    }
  }
  if (leaf.kind == Kind::kMesh) {
    for (const auto& element : leaf.Elements()) {
      std::memcpy(ElementAt(memory[element.rank].tensors[0], element.local_index),
                  ElementAt(global, element.global_index), element_bytes);
    }
  }
  for (const auto& [rank, box] : leaf.boxes) {
    StridedTensor& part =
        memory[rank].tensors.emplace_back(MakeStrided(random, global.dtype, box.sizes));
    ForEachIndex(box.sizes, [&](const std::vector<uint64_t>& index) {
      std::vector<uint64_t> at = index;
      for (size_t d = 0; d < at.size(); ++d) at[d] += box.offsets[d];
      std::memcpy(ElementAt(part, index), ElementAt(global, at), element_bytes);
    });
  }
  return memory;
}

/// Appends what `rank` has of the leaf; if `memory` is null, its views are null.
inline void AppendCase(const ShardedCase& leaf, const LocalMemory* memory, uint32_t rank,
                       StateDict::Builder builder) {
  using Kind = ShardedCase::Kind;
  const auto view = [&](size_t i, const Shape& shape) {
    return memory != nullptr ? memory->tensors[i].view()
                             : TensorView{.dtype = leaf.global.dtype, .shape = shape};
  };
  Sharding sharding{.global_shape = leaf.global.shape,
                    .mesh = leaf.mesh,
                    .placements = leaf.placements,
                    .parts = {}};
  switch (leaf.kind) {
    case Kind::kValue:
      builder.Value(leaf.key, int64_t{rank});
      return;
    case Kind::kWhole:
      builder.Tensor(leaf.key, view(0, leaf.global.shape));
      return;
    case Kind::kMesh:
      builder.Sharded(leaf.key, view(0, LocalShapeOf(leaf, rank)), std::move(sharding));
      return;
    case Kind::kBoxes:
      size_t next = 0;
      for (const auto& [holder, box] : leaf.boxes) {
        if (holder != rank) continue;
        sharding.parts.push_back({.box = box, .view = view(next++, box.sizes)});
      }
      builder.Sharded(leaf.key, {.dtype = leaf.global.dtype}, std::move(sharding));
  }
}

/// A mesh of 1 to 3 dimensions over some or all of the ranks, in any order.
inline std::shared_ptr<const DeviceMesh> RandomMesh(testing::SeededRandom& random,
                                                    uint32_t world_size) {
  std::vector<DeviceMesh::Dim> dims;
  uint32_t left = world_size;
  const uint64_t count = random.Between(1, 3);
  for (uint64_t d = 0; d < count; ++d) {
    const auto size = static_cast<uint32_t>(random.Between(d == 0 && left > 1 ? 2 : 1, left));
    dims.push_back({.name = "", .size = size});
    left /= size;
  }
  for (size_t i = dims.size(); i > 1; --i) std::swap(dims[i - 1], dims[random.Between(0, i - 1)]);
  uint32_t places = 1;
  for (const auto& dim : dims) places *= dim.size;
  std::vector<uint32_t> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0u);
  if (random.Chance(0.5)) {
    for (size_t i = ranks.size(); i > 1; --i) {
      std::swap(ranks[i - 1], ranks[random.Between(0, i - 1)]);
    }
  }
  ranks.resize(places);
  return std::make_shared<const DeviceMesh>(*DeviceMesh::Make(std::move(dims), std::move(ranks)));
}

/// Divides the box recursively at random positions.
inline void RandomBoxes(testing::SeededRandom& random, const Box& box, uint32_t world_size,
                        int depth, std::vector<std::pair<uint32_t, Box>>& boxes) {
  if (box.sizes.empty() || depth == 0 || random.Chance(0.2)) {
    boxes.emplace_back(static_cast<uint32_t>(random.Between(0, world_size - 1)), box);
    return;
  }
  const size_t d = random.Between(0, box.sizes.size() - 1);
  const uint64_t cut = random.Between(0, box.sizes[d]);
  Box left = box, right = box;
  left.sizes[d] = cut;
  right.offsets[d] += cut;
  right.sizes[d] -= cut;
  RandomBoxes(random, left, world_size, depth - 1, boxes);
  RandomBoxes(random, right, world_size, depth - 1, boxes);
}

inline ShardedCase RandomCase(testing::SeededRandom& random, const std::string& key,
                              uint32_t world_size) {
  using Kind = ShardedCase::Kind;
  const DType dtypes[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kInt64,
                          DType::kComplex128};
  ShardedCase leaf;
  leaf.key = key;
  Shape shape(random.Between(0, 3));
  for (uint64_t& size : shape) size = random.Chance(0.07) ? 0 : random.Between(1, 6);
  leaf.global = MakeStrided(random, dtypes[random.Between(0, 4)], shape);
  leaf.present.assign(world_size, true);
  const uint64_t kind = random.Between(0, 9);
  if (kind == 0) {
    leaf.kind = Kind::kValue;
  } else if (kind == 1) {
    leaf.kind = Kind::kWhole;
  } else if (kind <= 3) {
    leaf.kind = Kind::kBoxes;
    RandomBoxes(random, WholeBox(shape), world_size, 4, leaf.boxes);
  } else {
    leaf.kind = Kind::kMesh;
    leaf.mesh = RandomMesh(random, world_size);
    for (size_t m = 0; m < leaf.mesh->dims().size(); ++m) {
      Placement& placement = leaf.placements.emplace_back();
      if (shape.empty() || random.Chance(0.3)) continue;
      const auto dim = static_cast<uint32_t>(random.Between(0, shape.size() - 1));
      placement = random.Chance(0.6)
                      ? Placement::Shard(dim)
                      : Placement::StridedShard(dim, static_cast<uint32_t>(random.Between(1, 4)));
    }
  }
  // Keys that some ranks lack; a mesh needs all of its ranks, boxes the ranks that hold some.
  if (random.Chance(0.3)) {
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      const bool needed =
          (leaf.kind == Kind::kMesh && leaf.mesh->CoordinateOf(rank)) ||
          std::ranges::any_of(leaf.boxes, [&](const auto& box) { return box.first == rank; });
      leaf.present[rank] = needed || random.Chance(0.5);
    }
  }
  return leaf;
}

inline std::vector<ShardedCase> RandomCases(testing::SeededRandom& random, uint32_t world_size) {
  std::vector<ShardedCase> cases;
  const uint64_t count = random.Between(0, 5);
  for (uint64_t i = 0; i < count; ++i) {
    cases.push_back(RandomCase(random, fmt::format("k{}", i), world_size));
  }
  return cases;
}

/// Buffer sizes from the minimum to one that contains everything.
inline uint64_t RandomBufferBytes(testing::SeededRandom& random, uint32_t world_size) {
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
  GatherScenario(testing::SeededRandom& random, uint32_t world_size)
      : cases_(RandomCases(random, world_size)) {
    for (const ShardedCase& leaf : cases_) memory_.push_back(CutCase(random, leaf, world_size));
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
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].present[rank]) AppendCase(cases_[i], &memory_[i][rank], rank, state.root());
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
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].present[rank]) CheckLeaf(cases_[i], memory_[i][rank], rank, result.state());
    }
  }

 private:
  void CheckLeaf(const ShardedCase& leaf, const LocalMemory& memory, uint32_t rank,
                 const StateDict& result) const {
    SCOPED_TRACE(leaf.key);
    const uint32_t slot = result.slot[static_cast<size_t>(FindLeaf(result, leaf.key))];
    if (leaf.kind == ShardedCase::Kind::kValue) {
      ASSERT_EQ(result.values[slot], Value(int64_t{rank}));
      return;
    }
    // Tensors that are not sharded are those of the rank itself.
    const bool whole = leaf.kind == ShardedCase::Kind::kWhole;
    const StridedTensor& expected = whole ? memory.tensors[0] : leaf.global;
    ASSERT_EQ(result.tensors[slot].dtype, expected.dtype);
    ASSERT_EQ(result.tensors[slot].shape, expected.shape);
    ASSERT_EQ(NaiveRowMajor(result.tensors[slot]), NaiveRowMajor(expected.view()));
    if (whole && !expected.memory.empty() && *ElementCount(expected.shape) > 0) {
      EXPECT_EQ(result.tensors[slot].data == expected.memory.data(), !options_.cpu_offload);
    }
  }

  std::vector<ShardedCase> cases_;
  std::vector<std::vector<LocalMemory>> memory_;  // by case, by rank
  GatherOptions options_;
};

/// A broadcast of a full state to targets, and the expected result on each rank.
class BroadcastScenario {
 public:
  BroadcastScenario(testing::SeededRandom& random, uint32_t world_size)
      : cases_(RandomCases(random, world_size)) {
    for (ShardedCase& leaf : cases_) {
      // Memory with random contents, which the full state must overwrite.
      ShardedCase other = leaf;
      random.Fill(other.global.memory);
      memory_.push_back(CutCase(random, other, world_size));
      in_full_.push_back(random.Chance(0.8));
      std::vector<bool> has_memory;
      for (uint32_t rank = 0; rank < world_size; ++rank) has_memory.push_back(random.Chance(0.5));
      has_memory_.push_back(std::move(has_memory));
    }
    options_.strict = random.Chance(0.5);
    options_.cpu_offload = random.Chance(0.3);
    options_.buffer_bytes = RandomBufferBytes(random, world_size);
    extra_ = MakeStrided(random, DType::kInt32, {3});
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (!in_full_[i]) continue;
      if (cases_[i].kind == ShardedCase::Kind::kValue) {
        full_.root().Value(cases_[i].key, std::string("from rank 0"));
      } else {
        full_.root().Tensor(cases_[i].key, cases_[i].global.view());
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
  StateDict TargetOf(uint32_t rank) {
    StateDict target;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (!cases_[i].present[rank]) continue;
      AppendCase(cases_[i], has_memory_[i][rank] ? &memory_[i][rank] : nullptr, rank,
                 target.root());
    }
    return target;
  }

  // The number of bytes of the full state that the rank holds.
  uint64_t BytesFor(uint32_t rank) const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < cases_.size(); ++i) {
      const ShardedCase& leaf = cases_[i];
      if (!in_full_[i] || !leaf.present[rank] || leaf.kind == ShardedCase::Kind::kValue) continue;
      if (leaf.kind == ShardedCase::Kind::kMesh && !leaf.mesh->CoordinateOf(rank)) continue;
      for (const StridedTensor& tensor : memory_[i][rank].tensors) {
        bytes += *TensorBytes(tensor.dtype, tensor.shape);
      }
    }
    return bytes;
  }

  void Check(uint32_t rank, const StateDict& result) const {
    size_t leaves = 0;
    for (size_t i = 0; i < cases_.size(); ++i) {
      const ShardedCase& leaf = cases_[i];
      SCOPED_TRACE(leaf.key);
      const int64_t found = FindLeaf(result, leaf.key);
      const bool expected = leaf.present[rank] && (in_full_[i] || !options_.strict);
      ASSERT_EQ(found >= 0, expected);
      if (!expected) continue;
      ++leaves;
      const uint32_t slot = result.slot[static_cast<size_t>(found)];
      if (leaf.kind == ShardedCase::Kind::kValue) {
        const Value value = in_full_[i] ? Value(std::string("from rank 0")) : Value(int64_t{rank});
        ASSERT_EQ(result.values[slot], value);
        continue;
      }
      CheckMemory(i, rank, result, slot);
    }
    ASSERT_EQ(result.slot.size(), leaves);
  }

  void CheckMemory(size_t i, uint32_t rank, const StateDict& result, uint32_t slot) const {
    const ShardedCase& leaf = cases_[i];
    const LocalMemory& memory = memory_[i][rank];
    std::vector<TensorView> views;
    if (leaf.kind == ShardedCase::Kind::kBoxes) {
      for (const auto& part : result.shardings.at(slot).parts) views.push_back(part.view);
    } else {
      views.push_back(result.tensors[slot]);
    }
    ASSERT_EQ(views.size(), memory.tensors.size());
    const bool lacks_memory = !has_memory_[i][rank];
    for (size_t p = 0; p < views.size(); ++p) {
      ASSERT_EQ(views[p].shape, memory.tensors[p].shape);
      if (*ElementCount(views[p].shape) == 0) continue;
      const bool in_place = views[p].data == memory.tensors[p].memory.data();
      ASSERT_EQ(in_place, !lacks_memory && !(in_full_[i] && options_.cpu_offload));
      if (!in_full_[i] && lacks_memory) {
        ASSERT_EQ(views[p].data, nullptr);
      }
    }
    if (!in_full_[i]) return;  // nothing is written to it
    const StridedTensor& global = leaf.global;
    const uint64_t element_bytes = schema::ElementBytes(global.dtype);
    const auto same = [&](const TensorView& view, const std::vector<uint64_t>& local_index,
                          const std::vector<uint64_t>& global_index) {
      return std::memcmp(ElementAt(view, local_index), ElementAt(global.view(), global_index),
                         element_bytes) == 0;
    };
    if (leaf.kind == ShardedCase::Kind::kWhole) {
      ASSERT_EQ(NaiveRowMajor(views[0]), NaiveRowMajor(global.view()));
    } else if (leaf.kind == ShardedCase::Kind::kMesh) {
      for (const auto& element : leaf.Elements()) {
        if (element.rank != rank) continue;
        ASSERT_TRUE(same(views[0], element.local_index, element.global_index));
      }
    } else {
      size_t next = 0;
      for (const auto& [holder, box] : leaf.boxes) {
        if (holder != rank) continue;
        const TensorView& view = views[next++];
        ForEachIndex(box.sizes, [&](const std::vector<uint64_t>& index) {
          std::vector<uint64_t> at = index;
          for (size_t d = 0; d < at.size(); ++d) at[d] += box.offsets[d];
          ASSERT_TRUE(same(view, index, at));
        });
      }
    }
  }

  std::vector<ShardedCase> cases_;
  std::vector<std::vector<LocalMemory>> memory_;  // by case, by rank
  std::vector<std::vector<bool>> has_memory_;     // by case, by rank
  std::vector<bool> in_full_;                     // by case
  StridedTensor extra_;
  StateDict full_;
  BroadcastOptions options_;
};

}  // namespace cairn::core
