#pragma once
/// Random global tensors, divided among the ranks element by element (HoldersOf), independently of
/// the implementation of the collectives.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

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
    ForEachIndex(global.shape, [&](const std::vector<uint64_t>& index) {
      const auto holders = HoldersOf(global.shape, *mesh, placements, index);
      ASSERT_TRUE(testing::IsOk(holders));
      for (const uint32_t rank : holders->ranks) {
        elements.push_back({rank, index, holders->local_index});
      }
    });
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

}  // namespace cairn::core
