// Cases that work in memory alone: digests, strided copies, keys.

#include <array>
#include <cstring>
#include <vector>

#include "bench/regression/counting.h"
#include "core/tensor/strided_copy.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"

namespace cairn::bench {
namespace {

constexpr uint64_t kChunkBytes = 4 << 20;

// A slice of columns: runs of 256 bytes, in rows of 2 KiB.
constexpr uint64_t kRowCount = 4096;
constexpr uint64_t kSliceColumns = 64;
constexpr uint64_t kRowColumns = 512;
// The worst case: runs of one element.
constexpr uint64_t kSide = 512;

#ifdef __clang__
#define CAIRN_NOT_VECTORIZED [[clang::noinline, clang::optnone]]
#else
#define CAIRN_NOT_VECTORIZED \
  [[gnu::noinline, gnu::optimize("no-tree-vectorize", "no-unroll-loops")]]
#endif

/// One addition per 8 bytes, to which the ratios relate. It is not vectorized, so that it costs the
/// same with every version of GCC; counts of a build with Clang are not comparable.
CAIRN_NOT_VECTORIZED uint64_t WordSum(std::span<const uint64_t> words) {
  uint64_t sum = 0;
  for (const uint64_t word : words) sum += word;
  return sum;
}

/// Keeps the compiler from removing the computation of `result`.
void Keep(uint64_t result) { asm volatile("" : : "r"(result) : "memory"); }

/// Returns incompressible bytes, the same in every run: Knuth's MMIX linear congruential generator.
std::vector<std::byte> Noise(uint64_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  uint64_t state = 1;
  for (uint64_t i = 0; i + 8 <= size_bytes; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + i, &state, 8);
  }
  return bytes;
}

std::vector<std::byte> RowsMemory() { return Noise(kRowCount * kRowColumns * sizeof(float)); }
const core::Shape kRowsShape = {kRowCount, kSliceColumns};
constexpr uint64_t kRowsBytes = kRowCount * kSliceColumns * sizeof(float);

std::vector<std::byte> SquareMemory() { return Noise(kSide * kSide * sizeof(float)); }
const core::Shape kSquareShape = {kSide, kSide};
constexpr uint64_t kSquareBytes = kSide * kSide * sizeof(float);

void CountGather(const char* name, const core::TensorView& view, uint64_t size_bytes) {
  std::vector<std::byte> target(size_bytes);
  const auto gather = [&] {
    core::GatherBytes(view, 0, target);
    return 0;
  };
  Count(name, "byte", size_bytes, gather);
  Keep(static_cast<uint64_t>(target[size_bytes / 2]));
}

void CountScatter(const char* name, const core::TensorTarget& target, uint64_t size_bytes) {
  const std::vector<std::byte> payload = Noise(size_bytes);
  const auto scatter = [&] {
    core::ScatterBytes(payload, target, 0);
    return 0;
  };
  Count(name, "byte", size_bytes, scatter);
  Keep(static_cast<uint64_t>(target.data[0]));
}

}  // namespace

Result<void> CountWordSum(const std::string&) {
  const std::vector<uint64_t> words(kChunkBytes / 8, 3);
  Keep(Count("word_sum", "byte", kChunkBytes, [&] { return WordSum(words); }));
  return {};
}

Result<void> CountDigest(const std::string&) {
  const std::vector<std::byte> payload = Noise(kChunkBytes);
  std::vector<uint64_t> page_digests;
  const auto digest = [&] {
    page_digests.clear();
    kv::AppendPageDigests(payload, page_digests);
    return kv::RootDigest(page_digests, payload.size());
  };
  Keep(Count("digest", "byte", kChunkBytes, digest).lo);
  return {};
}

Result<void> CountGatherRows(const std::string&) {
  const std::vector<std::byte> memory = RowsMemory();
  CountGather("gather_rows", {core::DType::kFloat32, kRowsShape, {kRowColumns, 1}, memory.data()},
              kRowsBytes);
  return {};
}

Result<void> CountGatherTransposed(const std::string&) {
  const std::vector<std::byte> memory = SquareMemory();
  CountGather("gather_transposed", {core::DType::kFloat32, kSquareShape, {1, kSide}, memory.data()},
              kSquareBytes);
  return {};
}

Result<void> CountScatterRows(const std::string&) {
  std::vector<std::byte> memory = RowsMemory();
  CountScatter("scatter_rows", {core::DType::kFloat32, kRowsShape, {kRowColumns, 1}, memory.data()},
               kRowsBytes);
  return {};
}

Result<void> CountScatterTransposed(const std::string&) {
  std::vector<std::byte> memory = SquareMemory();
  CountScatter("scatter_transposed",
               {core::DType::kFloat32, kSquareShape, {1, kSide}, memory.data()}, kSquareBytes);
  return {};
}

Result<void> CountChunkKeys(const std::string&) {
  constexpr uint64_t kKeyCount = 1000;
  const auto encode = [] {
    uint64_t length = 0;
    for (uint64_t i = 0; i < kKeyCount; ++i) {
      const std::array<uint64_t, 2> offsets = {i, 0};
      length += kv::ChunkKey("model.layers.11.mlp.experts.3.gate_proj.weight", offsets).size();
    }
    return length;
  };
  Keep(Count("chunk_key", "key", kKeyCount, encode));
  return {};
}

}  // namespace cairn::bench
