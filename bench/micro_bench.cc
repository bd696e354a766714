// The inner loops of save and load, measured separately, and memcpy for comparison: digests,
// strided copies, keys, tilings.
//
//   build/bin/cairn_micro_bench --benchmark_filter=Gather

#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "bench/noise.h"
#include "core/state_dict/key_pattern.h"
#include "core/tensor/strided_copy.h"
#include "core/tensor/tiling.h"
#include "kv/digest.h"
#include "kv/key.h"

namespace cairn {
namespace {

using bench::Noise;

void SetBytes(benchmark::State& state, uint64_t bytes_each) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes_each));
}

/// The limit for all loops below that copy bytes.
void Memcpy(benchmark::State& state) {
  const auto source = Noise(static_cast<size_t>(state.range(0)));
  std::vector<std::byte> target(source.size());
  for (auto _ : state) {
    std::memcpy(target.data(), source.data(), source.size());
    benchmark::DoNotOptimize(target.data());
    benchmark::ClobberMemory();
  }
  SetBytes(state, source.size());
}
BENCHMARK(Memcpy)->Arg(64 << 10)->Arg(4 << 20)->Arg(64 << 20);

void PageTreeDigest(benchmark::State& state) {
  const auto payload = Noise(static_cast<size_t>(state.range(0)));
  std::vector<uint64_t> page_digests;
  for (auto _ : state) {
    page_digests.clear();
    kv::AppendPageDigests(payload, page_digests);
    benchmark::DoNotOptimize(kv::RootDigest(page_digests, payload.size()));
  }
  SetBytes(state, payload.size());
}
BENCHMARK(PageTreeDigest)->Arg(4 << 10)->Arg(64 << 10)->Arg(4 << 20)->Arg(64 << 20);

/// Gathers the rows of a matrix whose row stride is `range(0)` times the row length.
void GatherRows(benchmark::State& state) {
  constexpr uint64_t kRows = 2048;
  constexpr uint64_t kColumns = 512;
  const uint64_t spread = static_cast<uint64_t>(state.range(0));
  const auto memory = Noise(kRows * kColumns * spread * 4);
  const core::TensorView view{.dtype = core::DType::kFloat32,
                              .shape = {kRows, kColumns},
                              .strides = {kColumns * spread, 1},
                              .data = memory.data()};
  std::vector<std::byte> target(kRows * kColumns * 4);
  for (auto _ : state) {
    core::GatherBytes(view, 0, target);
    benchmark::ClobberMemory();
  }
  SetBytes(state, target.size());
}
BENCHMARK(GatherRows)->Arg(2)->Arg(8);

/// The worst case: a transposed matrix, with runs of one element.
void GatherTransposed(benchmark::State& state) {
  constexpr uint64_t kSide = 1024;
  const auto memory = Noise(kSide * kSide * 4);
  const core::TensorView view{.dtype = core::DType::kFloat32,
                              .shape = {kSide, kSide},
                              .strides = {1, kSide},
                              .data = memory.data()};
  std::vector<std::byte> target(memory.size());
  for (auto _ : state) {
    core::GatherBytes(view, 0, target);
    benchmark::ClobberMemory();
  }
  SetBytes(state, target.size());
}
BENCHMARK(GatherTransposed);

void ChunkKeys(benchmark::State& state) {
  const std::vector<uint64_t> offsets = {1024, 0};
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        kv::ChunkKey("model.layers.11.mlp.experts.3.gate_proj.weight", offsets));
  }
}
BENCHMARK(ChunkKeys);

void PatternMatch(benchmark::State& state) {
  const auto patterns =
      core::KeyPatterns::Parse({"model.layers.[0-9].**.weight", "!model.layers.3"});
  if (!patterns) return state.SkipWithError("the patterns do not parse");
  for (auto _ : state) {
    benchmark::DoNotOptimize(patterns->Matches("model.layers.7.mlp.experts.3.gate_proj.weight"));
  }
}
BENCHMARK(PatternMatch);

/// Checks a tensor that is split into a grid of boxes, in the order of ranks that each hold one
/// column. The sizes show how the time grows with the number of boxes.
void TilingCheck(benchmark::State& state) {
  const auto boxes = static_cast<uint64_t>(state.range(0));
  constexpr uint64_t kColumns = 100;
  core::BoxList list(2);
  list.Reserve(boxes);
  for (uint64_t i = 0; i < boxes; ++i) {
    const uint64_t offsets[] = {i % (boxes / kColumns) * 3, i / (boxes / kColumns) * 5};
    list.Add(offsets, std::array<uint64_t, 2>{3, 5});
  }
  const core::Shape shape = {boxes / kColumns * 3, kColumns * 5};
  for (auto _ : state) {
    if (core::FindTilingFlaw(shape, list)) return state.SkipWithError("the grid does not tile");
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(TilingCheck)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Arg(10'000'000);

}  // namespace
}  // namespace cairn

BENCHMARK_MAIN();
