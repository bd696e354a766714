// Deltas of bf16 weights after a step of fine-tuning, compared with what others do with the same
// data: bytes, and speed in bytes of the chunk per second. The argument is the number of changed
// elements per mille.
//
//   build/bin/cairn_delta_bench
//
// DeltaReadBoth is the limit for an encoder, which reads both versions; DeltaPageDigests is what a
// save computes in any case.

#include <benchmark/benchmark.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "core/codec/internal/delta.h"
#include "core/codec/internal/delta_encoder.h"
#include "kv/base/digest.h"

namespace cairn {
namespace {

using core::internal::Delta;
using core::internal::DeltaEncoder;

constexpr size_t kElements = 32 << 20;
constexpr size_t kChunkBytes = 4 << 20;
constexpr size_t kBytes = kElements * 2;

uint16_t ToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Weights {
  std::vector<uint16_t> before;
  std::vector<uint16_t> after;
  double changed = 0;

  std::span<const std::byte> BeforeChunk(size_t begin) const {
    return std::as_bytes(std::span(before)).subspan(begin, kChunkBytes);
  }
  std::span<const std::byte> AfterChunk(size_t begin) const {
    return std::as_bytes(std::span(after)).subspan(begin, kChunkBytes);
  }
};

/// Normally distributed fp32 master weights, and updates like those of Adam: nearly the learning
/// rate for most elements, in either direction.
Weights MakeWeights(float learning_rate) {
  std::mt19937_64 engine(1);
  std::normal_distribution<float> weight(0, 0.02f);
  std::normal_distribution<float> gradient(0, 1);
  Weights weights{.before = std::vector<uint16_t>(kElements),
                  .after = std::vector<uint16_t>(kElements)};
  size_t changed = 0;
  for (size_t i = 0; i < kElements; ++i) {
    const float master = weight(engine);
    const float update = std::clamp(1.2f * gradient(engine), -1.0f, 1.0f);
    weights.before[i] = ToBFloat16(master);
    weights.after[i] = ToBFloat16(master - learning_rate * update);
    changed += weights.before[i] != weights.after[i];
  }
  weights.changed = static_cast<double>(changed) / kElements;
  return weights;
}

const Weights& WeightsFor(const benchmark::State& state) {
  static const std::map<int64_t, float> kLearningRates = {
      {15, 4.41e-7f}, {40, 1.42e-6f}, {100, 4.45e-6f}};
  static std::map<int64_t, Weights> made;
  const auto [entry, is_new] = made.try_emplace(state.range(0));
  if (is_new) entry->second = MakeWeights(kLearningRates.at(state.range(0)));
  return entry->second;
}

/// Sets the results: `stored_bytes` for all weights.
void Report(benchmark::State& state, const Weights& weights, uint64_t stored_bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kBytes));
  state.counters["changed%"] = 100 * weights.changed;
  if (stored_bytes != 0) {
    state.counters["times_fewer_bytes"] =
        static_cast<double>(kBytes) / static_cast<double>(stored_bytes);
  }
}

std::span<const std::byte> EncodeChunk(DeltaEncoder& encoder, std::span<const std::byte> before,
                                       std::span<const std::byte> after) {
  static const std::vector<uint64_t> kDigests(kv::PageCount(kChunkBytes), 0x9e3779b97f4a7c15);
  encoder.Begin(2, kChunkBytes);
  for (size_t page = 0; page < kChunkBytes; page += kv::kPageBytes) {
    encoder.AddPage(before.subspan(page, kv::kPageBytes), after.subspan(page, kv::kPageBytes));
  }
  return *encoder.Finish(kDigests, UINT64_MAX);
}

void DeltaEncode(benchmark::State& state) {
  const Weights& weights = WeightsFor(state);
  DeltaEncoder encoder;
  uint64_t bytes = 0;
  for (auto _ : state) {
    bytes = 0;
    for (size_t begin = 0; begin < kBytes; begin += kChunkBytes) {
      bytes += EncodeChunk(encoder, weights.BeforeChunk(begin), weights.AfterChunk(begin)).size();
    }
  }
  Report(state, weights, bytes);
}

/// Parses and applies all deltas to the weights in memory.
void DeltaDecode(benchmark::State& state) {
  const Weights& weights = WeightsFor(state);
  DeltaEncoder encoder;
  std::vector<std::vector<std::byte>> deltas;
  for (size_t begin = 0; begin < kBytes; begin += kChunkBytes) {
    const auto delta = EncodeChunk(encoder, weights.BeforeChunk(begin), weights.AfterChunk(begin));
    deltas.emplace_back(delta.begin(), delta.end());
  }
  std::vector<uint16_t> decoded;
  for (auto _ : state) {
    state.PauseTiming();
    decoded = weights.before;
    state.ResumeTiming();
    for (size_t i = 0; i < deltas.size(); ++i) {
      const auto chunk =
          std::as_writable_bytes(std::span(decoded)).subspan(i * kChunkBytes, kChunkBytes);
      const auto delta = Delta::Parse(deltas[i], kChunkBytes);
      if (!delta) return state.SkipWithError("the delta does not parse");
      for (uint64_t page = 0; page < delta->page_count(); ++page) {
        if (!delta->Apply(page, chunk.subspan(page * kv::kPageBytes, kv::kPageBytes))) {
          return state.SkipWithError("the delta does not apply");
        }
      }
    }
  }
  if (decoded != weights.after) return state.SkipWithError("wrong bytes");
  Report(state, weights, 0);
}

void DeltaPageDigests(benchmark::State& state) {
  const Weights& weights = WeightsFor(state);
  for (auto _ : state) {
    for (size_t begin = 0; begin < kBytes; begin += kv::kPageBytes) {
      benchmark::DoNotOptimize(
          kv::PageDigest(std::as_bytes(std::span(weights.after)).subspan(begin, kv::kPageBytes)));
    }
  }
  Report(state, weights, 0);
}
BENCHMARK(DeltaPageDigests)->Arg(15)->Unit(benchmark::kMillisecond);

/// Compares both versions, which are equal here, so that all bytes are read.
void DeltaReadBoth(benchmark::State& state) {
  const Weights& weights = WeightsFor(state);
  const std::vector<uint16_t> copy = weights.before;
  for (auto _ : state) {
    benchmark::DoNotOptimize(std::memcmp(weights.before.data(), copy.data(), kBytes));
  }
  Report(state, weights, 0);
}
BENCHMARK(DeltaReadBoth)->Arg(15)->Unit(benchmark::kMillisecond);

/// The XOR of both versions, compressed by zstd at level 1 as a whole.
void DeltaPeerXorZstd(benchmark::State& state) {
  const Weights& weights = WeightsFor(state);
  std::vector<uint16_t> difference(kElements);
  std::vector<std::byte> compressed(ZSTD_compressBound(kBytes));
  size_t bytes = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < kElements; ++i) {
      difference[i] = static_cast<uint16_t>(weights.before[i] ^ weights.after[i]);
    }
    bytes = ZSTD_compress(compressed.data(), compressed.size(), difference.data(), kBytes, 1);
  }
  Report(state, weights, bytes);
}

void DeltaPeerXorUnZstd(benchmark::State& state) {
  const Weights& weights = WeightsFor(state);
  std::vector<uint16_t> difference(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    difference[i] = static_cast<uint16_t>(weights.before[i] ^ weights.after[i]);
  }
  std::vector<std::byte> compressed(ZSTD_compressBound(kBytes));
  compressed.resize(
      ZSTD_compress(compressed.data(), compressed.size(), difference.data(), kBytes, 1));
  std::vector<uint16_t> decoded = weights.before;  // the XOR alternates between the two versions
  for (auto _ : state) {
    ZSTD_decompress(difference.data(), kBytes, compressed.data(), compressed.size());
    for (size_t i = 0; i < kElements; ++i) decoded[i] ^= difference[i];
    benchmark::ClobberMemory();
  }
  Report(state, weights, 0);
}

/// The new version, compressed by zstd at level 1.
void DeltaPeerZstd(benchmark::State& state) {
  const Weights& weights = WeightsFor(state);
  std::vector<std::byte> compressed(ZSTD_compressBound(kBytes));
  size_t bytes = 0;
  for (auto _ : state) {
    bytes = ZSTD_compress(compressed.data(), compressed.size(), weights.after.data(), kBytes, 1);
  }
  Report(state, weights, bytes);
}
BENCHMARK(DeltaPeerZstd)->Arg(15)->Unit(benchmark::kMillisecond);

BENCHMARK(DeltaEncode)->Arg(15)->Arg(40)->Arg(100)->Unit(benchmark::kMillisecond);
BENCHMARK(DeltaDecode)->Arg(15)->Arg(40)->Arg(100)->Unit(benchmark::kMillisecond);
BENCHMARK(DeltaPeerXorZstd)->Arg(15)->Arg(40)->Arg(100)->Unit(benchmark::kMillisecond);
BENCHMARK(DeltaPeerXorUnZstd)->Arg(15)->Arg(40)->Arg(100)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cairn
