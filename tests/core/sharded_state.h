#pragma once
/// Global tensors, and the part of them that each rank of a random mesh holds.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/tensor/strided_copy.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core::testing {

/// A complete tensor with its name, as the reference for comparisons.
struct GlobalTensor {
  std::string fqn;
  TestTensor tensor;
};

/// How one tensor is placed on a mesh, or that it is replicated on all ranks.
struct Layout {
  std::shared_ptr<const DeviceMesh> mesh;
  std::vector<Placement> placements;
  std::vector<std::pair<Box, uint32_t>> boxes;  // explicit, with their ranks
  bool plain = false;
};

/// Returns what `rank` holds of a tensor; without a sharding, all of it.
std::vector<ShardView> PiecesOf(const Sharding* sharding, const TensorView& local, uint32_t rank);
/// True if the views have the contents of their boxes of `global`.
bool HoldsPartsOf(const TestTensor& global, const std::vector<ShardView>& pieces);

/// A part of a global tensor in separate memory, possibly with gaps between its rows. Ownership:
/// owns the memory.
class LocalTensor {
 public:
  /// Allocates what `rank` holds, zeroed; `gap` elements after each innermost row are unused.
  LocalTensor(const TestTensor& global, const Layout& layout, uint32_t rank, uint64_t gap = 0)
      : dtype_(global.dtype), plain_(layout.plain) {
    sharding_.global_shape = global.shape;
    if (plain_) {
      view_ = Allocate(global.shape, gap);
      return;
    }
    if (layout.mesh == nullptr) {
      view_ = {.dtype = dtype_, .shape = {}};
      for (const auto& [box, owner] : layout.boxes) {
        if (owner == rank)
          sharding_.parts.push_back({.box = box, .view = Allocate(box.sizes, gap)});
      }
      return;
    }
    sharding_.mesh = layout.mesh;
    sharding_.placements = layout.placements;
    if (!layout.mesh->CoordinateOf(rank)) {
      view_ = Allocate({0}, gap);
      return;
    }
    const auto shard = ShardOf(global.shape, *layout.mesh, layout.placements, rank);
    EXPECT_TRUE(cairn::testing::IsOk(shard));
    view_ = Allocate(shard->sizes(), gap);
  }

  bool plain() const { return plain_; }
  const TensorView& view() const { return view_; }
  const Sharding& sharding() const { return sharding_; }
  TensorTarget target() const {
    return {view_.dtype, view_.shape, view_.strides, const_cast<std::byte*>(view_.data)};
  }
  std::vector<ShardView> Pieces(uint32_t rank) const {
    return PiecesOf(plain_ ? nullptr : &sharding_, view_, rank);
  }

  /// Copies this rank's part of `global` to this memory.
  void FillFrom(const TestTensor& global, uint32_t rank) {
    for (const ShardView& piece : Pieces(rank)) {
      CopyTensor(Narrow(global.view(), piece.box), TargetOf(piece.view));
    }
  }
  /// True if it holds this rank's part of `global`.
  bool Equals(const TestTensor& global, uint32_t rank) const {
    return HoldsPartsOf(global, Pieces(rank));
  }

 private:
  static TensorTarget TargetOf(const TensorView& view) {
    return {view.dtype, view.shape, view.strides, const_cast<std::byte*>(view.data)};
  }

  TensorView Allocate(const Shape& shape, uint64_t gap) {
    TensorView view{.dtype = dtype_, .shape = shape};
    Shape padded = shape;
    if (!padded.empty()) padded.back() += gap;
    const auto elements = ElementCount(padded);
    memory_.push_back(std::make_unique<std::vector<std::byte>>(
        std::max<uint64_t>(*elements * schema::ElementBytes(dtype_), 1)));
    view.data = memory_.back()->data();
    if (gap > 0) view.strides = RowMajorStrides(padded);
    return view;
  }

  DType dtype_;
  bool plain_;
  Sharding sharding_;
  TensorView view_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

/// Everything that one rank holds, and its state dict.
class RankState {
 public:
  RankState(const std::vector<GlobalTensor>& globals, const std::vector<Layout>& layouts,
            uint32_t rank, uint64_t gap = 0) {
    for (size_t i = 0; i < globals.size(); ++i) {
      locals_.push_back(std::make_unique<LocalTensor>(globals[i].tensor, layouts[i], rank, gap));
    }
    for (size_t i = 0; i < globals.size(); ++i) {
      const LocalTensor& local = *locals_[i];
      if (local.plain()) {
        state.root().Tensor(globals[i].fqn, local.view());
      } else {
        state.root().Sharded(globals[i].fqn, local.view(), local.sharding());
      }
      targets.push_back({.fqn = globals[i].fqn,
                         .sharding = local.plain() ? nullptr : &local.sharding(),
                         .local = local.target()});
    }
  }

  void FillFrom(const std::vector<GlobalTensor>& globals, uint32_t rank) {
    for (size_t i = 0; i < globals.size(); ++i) locals_[i]->FillFrom(globals[i].tensor, rank);
  }
  /// Returns the name of the first tensor that differs from its part of the global one; empty if
  /// none does.
  std::string FindDifference(const std::vector<GlobalTensor>& globals, uint32_t rank) const {
    for (size_t i = 0; i < globals.size(); ++i) {
      if (!locals_[i]->Equals(globals[i].tensor, rank)) return globals[i].fqn;
    }
    return "";
  }

  StateDict state;
  std::vector<ShardTarget> targets;

 private:
  std::vector<std::unique_ptr<LocalTensor>> locals_;
};

/// Returns a state in which tensors have no memory, as ranks describe the full state of rank 0.
inline StateDict WithoutMemory(StateDict state) {
  for (TensorView& view : state.tensors) view = {.dtype = view.dtype, .shape = view.shape};
  return state;
}

/// A mesh of one to three dimensions over exactly `ranks` ranks, numbered at random.
std::shared_ptr<const DeviceMesh> RandomMesh(uint32_t ranks, cairn::testing::SeededRandom& random);
/// Returns a random layout of a tensor on the mesh: any placements, explicit boxes, or replicated.
Layout RandomLayout(const Shape& shape, std::shared_ptr<const DeviceMesh> mesh,
                    cairn::testing::SeededRandom& random);
/// Returns tensors of any shape (uneven, empty, scalars) and dtype, of a few KB each.
std::vector<GlobalTensor> RandomTensors(size_t count, cairn::testing::SeededRandom& random);

std::vector<Layout> RandomLayouts(const std::vector<GlobalTensor>& globals, uint32_t ranks,
                                  cairn::testing::SeededRandom& random);

/// Several tensors that are saved on one mesh and loaded on another.
struct MeshCase {
  MeshCase(uint32_t save_ranks, uint32_t load_ranks, cairn::testing::SeededRandom& random);

  std::vector<GlobalTensor> globals;
  std::vector<Layout> saved;
  std::vector<Layout> loaded;
  SaveOptions save_options;
  ShardLoadOptions load_options;
  uint64_t gap = 0;  // of the memory of the loads
};

/// Saves what this rank holds of `globals`. Returns the bytes that it wrote.
uint64_t SaveOn(CheckpointStore& store, uint64_t step, const std::vector<GlobalTensor>& globals,
                const std::vector<Layout>& layouts, const SaveOptions& options);

/// Loads this rank's part and compares it with `globals`. Returns the bytes that it read.
uint64_t LoadOn(const CheckpointStore& store, uint64_t step,
                const std::vector<GlobalTensor>& globals, const std::vector<Layout>& layouts,
                const ShardLoadOptions& options, uint64_t gap);

}  // namespace cairn::core::testing
