// Random meshes, layouts and tensors.

#include "tests/core/sharded_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace cairn::core::testing {

using cairn::testing::SeededRandom;

std::vector<ShardView> PiecesOf(const Sharding* sharding, const TensorView& local, uint32_t rank) {
  if (sharding == nullptr) return {{.box = WholeBox(local.shape), .view = local}};
  if (sharding->mesh != nullptr && !sharding->mesh->CoordinateOf(rank)) return {};
  const auto pieces = ShardViewsOf(*sharding, local, rank);
  EXPECT_TRUE(cairn::testing::IsOk(pieces));
  return pieces.value_or(std::vector<ShardView>{});
}

bool HoldsPartsOf(const TestTensor& global, const std::vector<ShardView>& pieces) {
  for (const ShardView& piece : pieces) {
    TestTensor expected(global.dtype, piece.box.sizes);
    CopyTensor(Narrow(global.view(), piece.box), expected.target());
    std::vector<std::byte> found(expected.bytes.size());
    GatherBytes(piece.view, 0, found);
    if (found != expected.bytes) return false;
  }
  return true;
}

std::shared_ptr<const DeviceMesh> RandomMesh(uint32_t ranks, SeededRandom& random) {
  std::vector<DeviceMesh::Dim> dims;
  uint32_t left = ranks;
  while (left > 1 && dims.size() < 2) {
    std::vector<uint32_t> divisors;
    for (uint32_t n = 1; n <= left; ++n) {
      if (left % n == 0) divisors.push_back(n);
    }
    const uint32_t size = divisors[random.Between(0, divisors.size() - 1)];
    dims.push_back({fmt::format("dim{}", dims.size()), size});
    left /= size;
  }
  dims.push_back({"last", left});
  std::vector<uint32_t> order(ranks);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[random.Between(0, i - 1)]);
  auto mesh = DeviceMesh::Make(dims, order);
  EXPECT_TRUE(cairn::testing::IsOk(mesh));
  return std::make_shared<const DeviceMesh>(*std::move(mesh));
}

namespace {

// Divides the shape by a grid and assigns the boxes to ranks.
std::vector<std::pair<Box, uint32_t>> RandomBoxes(const Shape& shape, uint32_t ranks,
                                                  SeededRandom& random) {
  std::vector<Box> boxes = {WholeBox(shape)};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<Box> cut;
    const uint64_t step = random.Between(1, std::max<uint64_t>(shape[d], 1));
    for (const Box& box : boxes) {
      for (uint64_t at = 0; at < shape[d]; at += step) {
        cut.push_back(box);
        cut.back().offsets[d] = at;
        cut.back().sizes[d] = std::min(step, shape[d] - at);
      }
    }
    if (cut.size() > 64) break;  // enough
    boxes = std::move(cut);
  }
  std::vector<std::pair<Box, uint32_t>> dealt;
  for (Box& box : boxes) {
    dealt.emplace_back(std::move(box), static_cast<uint32_t>(random.Between(0, ranks - 1)));
  }
  return dealt;
}

}  // namespace

Layout RandomLayout(const Shape& shape, std::shared_ptr<const DeviceMesh> mesh,
                    SeededRandom& random) {
  Layout layout;
  if (random.Chance(0.15)) {
    layout.plain = true;
    return layout;
  }
  if (random.Chance(0.15)) {
    layout.boxes = RandomBoxes(shape, mesh->size(), random);
    return layout;
  }
  for (size_t d = 0; d < mesh->dims().size(); ++d) {
    if (shape.empty() || random.Chance(0.35)) {
      layout.placements.push_back(Placement::Replicate());
      continue;
    }
    const auto dim = static_cast<uint32_t>(random.Between(0, shape.size() - 1));
    layout.placements.push_back(
        random.Chance(0.3)
            ? Placement::StridedShard(dim, static_cast<uint32_t>(random.Between(1, 4)))
            : Placement::Shard(dim));
  }
  layout.mesh = std::move(mesh);
  return layout;
}

std::vector<GlobalTensor> RandomTensors(size_t count, SeededRandom& random) {
  std::vector<GlobalTensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    Shape shape(random.Between(0, 3));
    for (uint64_t& size : shape) size = random.Chance(0.05) ? 0 : random.Between(1, 13);
    const DType dtype = schema::kDTypes[random.Between(0, schema::kDTypes.size() - 1)].dtype;
    tensors.push_back({fmt::format("t{}", i),
                       TestTensor(dtype, shape, static_cast<uint8_t>(random.Between(0, 255)))});
  }
  return tensors;
}

std::vector<Layout> RandomLayouts(const std::vector<GlobalTensor>& globals, uint32_t ranks,
                                  SeededRandom& random) {
  const auto mesh = RandomMesh(ranks, random);
  std::vector<Layout> layouts;
  for (const GlobalTensor& global : globals) {
    layouts.push_back(RandomLayout(global.tensor.shape, mesh, random));
  }
  return layouts;
}

MeshCase::MeshCase(uint32_t save_ranks, uint32_t load_ranks, SeededRandom& random)
    : globals(RandomTensors(random.Between(1, 6), random)),
      saved(RandomLayouts(globals, save_ranks, random)),
      loaded(RandomLayouts(globals, load_ranks, random)),
      save_options{.chunk_bytes = random.Between(1, 400)},
      load_options{.read_once = random.Chance(0.5),
                   .buffer_bytes = random.Between(1, 500),
                   .window_bytes = random.Between(1, 5000)},
      gap(random.Between(0, 2)) {}

uint64_t SaveOn(CheckpointStore& store, uint64_t step, const std::vector<GlobalTensor>& globals,
                const std::vector<Layout>& layouts, const SaveOptions& options) {
  RankState state(globals, layouts, store.rank());
  state.FillFrom(globals, store.rank());
  const auto report = store.Save(step, state.state, options);
  EXPECT_TRUE(cairn::testing::IsOk(report)) << "rank " << store.rank() << ", step " << step;
  return report ? report->written_bytes : 0;
}

uint64_t LoadOn(const CheckpointStore& store, uint64_t step,
                const std::vector<GlobalTensor>& globals, const std::vector<Layout>& layouts,
                const ShardLoadOptions& options, uint64_t gap) {
  RankState state(globals, layouts, store.rank(), gap);
  const auto snapshot = store.kv().Latest();
  EXPECT_TRUE(cairn::testing::IsOk(snapshot));
  const auto info = (*snapshot)->FindStep(step);
  EXPECT_TRUE(cairn::testing::IsOk(info));
  if (!info) return 0;
  const auto report = store.LoadShards(*info, state.targets, options);
  EXPECT_TRUE(cairn::testing::IsOk(report)) << "rank " << store.rank() << ", step " << step;
  EXPECT_EQ(state.FindDifference(globals, store.rank()), "")
      << "rank " << store.rank() << ", step " << step;
  return report ? report->bytes_read : 0;
}

}  // namespace cairn::core::testing
