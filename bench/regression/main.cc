// The workloads whose instructions bench/regression.py counts. Runs the cases that are named on the
// command line, or all of them:
//
//   cairn_regression DIRECTORY [CASE...]
//
// Under `valgrind --tool=callgrind --instr-atstart=no` each Count writes a dump that is named after
// its measurement, and a line "NAME UNIT UNITS" on standard output, in the order of the dumps. If a
// measurement is taken twice with different numbers of units, its result is the difference of the
// two, which removes the instructions that do not depend on the units.

#include <fmt/format.h>
#include <rocksdb/version.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/tensor/strided_copy.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/key.h"

namespace cairn::bench {
namespace {

/// Runs `workload`, which processes `units` of `unit`, and counts the instructions of all threads.
template <typename Workload>
auto Count(const char* name, const char* unit, uint64_t units, Workload&& workload) {
  CALLGRIND_START_INSTRUMENTATION;
  auto result = std::forward<Workload>(workload)();
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
  std::printf("%s %s %llu\n", name, unit, static_cast<unsigned long long>(units));
  return result;
}

// --- In memory alone: digests, strided copies, keys

constexpr uint64_t kChunkBytes = 4 << 20;

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

/// A part of a matrix of float32 that is not contiguous.
struct Part {
  core::Shape shape;
  std::vector<uint64_t> strides;
  uint64_t matrix_floats;

  uint64_t size_bytes() const { return shape[0] * shape[1] * sizeof(float); }
};
// A slice of columns: runs of 256 bytes, in rows of 2 KiB.
Part Rows() { return {{4096, 64}, {512, 1}, uint64_t{4096} * 512}; }
// The worst case: runs of one element.
Part Transposed() { return {{512, 512}, {1, 512}, uint64_t{512} * 512}; }

Result<void> CountGather(const char* name, const Part& part) {
  const std::vector<std::byte> memory = Noise(part.matrix_floats * sizeof(float));
  const core::TensorView view{core::DType::kFloat32, part.shape, part.strides, memory.data()};
  std::vector<std::byte> target(part.size_bytes());
  Count(name, "byte", target.size(), [&] {
    core::GatherBytes(view, 0, target);
    return 0;
  });
  Keep(static_cast<uint64_t>(target[target.size() / 2]));
  return {};
}

Result<void> CountScatter(const char* name, const Part& part) {
  std::vector<std::byte> memory = Noise(part.matrix_floats * sizeof(float));
  const core::TensorTarget target{core::DType::kFloat32, part.shape, part.strides, memory.data()};
  const std::vector<std::byte> payload = Noise(part.size_bytes());
  Count(name, "byte", payload.size(), [&] {
    core::ScatterBytes(payload, target, 0);
    return 0;
  });
  Keep(static_cast<uint64_t>(memory[0]));
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

// --- On a store: small tensors, which measure the cost per tensor; large tensors, which measure
// the passes over the bytes; opening

constexpr uint64_t kTensorFloats = 64;

// Uses threads and the page cache, so that valgrind and the file system do not affect the counts.
kv::StoreOptions CountedOptions() {
  kv::StoreOptions options;
  options.io = {.direct = false, .uring = false};
  return options;
}

/// `count` tensors of `floats` elements each.
class Tensors {
 public:
  Tensors(uint64_t count, uint64_t floats) : memory_(count * floats), floats_(floats) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<float>(i);
    auto root = state_.root();
    for (uint64_t i = 0; i < count; ++i) {
      names_.push_back(fmt::format("model.layers.{:05}.norm.weight", i));
      root.Tensor(names_.back(), {core::DType::kFloat32, {floats}, {}, data(i)});
    }
  }

  const core::StateDict& state() const { return state_; }
  std::vector<core::LoadRequest> Requests() {
    std::vector<core::LoadRequest> requests;
    for (uint64_t i = 0; i < names_.size(); ++i) {
      requests.push_back({names_[i],
                          core::WholeBox(core::Shape{floats_}),
                          {core::DType::kFloat32, {floats_}, {}, data(i)}});
    }
    return requests;
  }

 private:
  std::byte* data(uint64_t i) { return reinterpret_cast<std::byte*>(&memory_[i * floats_]); }

  std::vector<float> memory_;
  uint64_t floats_;
  std::vector<std::string> names_;
  core::StateDict state_;
};

/// Names of the measurements of one round.
struct Names {
  const char* unit = nullptr;
  const char* save = nullptr;
  const char* save_unchanged = nullptr;
  const char* load = nullptr;
};

/// Saves the tensors, saves them again unchanged, and loads them: three measurements.
Result<void> CountRound(const std::string& directory, uint64_t units, Tensors& tensors,
                        const Names& names) {
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(directory, kv::OpenMode::kWrite, CountedOptions()));
  CAIRN_TRY(Count(names.save, names.unit, units, [&] { return store->Save(1, tensors.state()); }));
  CAIRN_TRY(Count(names.save_unchanged, names.unit, units,
                  [&] { return store->Save(2, tensors.state()); }));
  const std::vector<core::LoadRequest> requests = tensors.Requests();
  CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
  CAIRN_TRY(
      Count(names.load, names.unit, units, [&] { return store->Load(steps.front(), requests); }));
  return store->Close();
}

/// Runs one round that is not counted, in which symbols are resolved and lazy objects are created.
Result<void> WarmUp(const std::string& directory) {
  Tensors tensors(10, kTensorFloats);
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(directory, kv::OpenMode::kWrite, CountedOptions()));
  CAIRN_TRY(store->Save(1, tensors.state()));
  CAIRN_TRY(store->Save(2, tensors.state()));
  CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
  CAIRN_TRY(store->Load(steps.front(), tensors.Requests()));
  return store->Close();
}

/// Two rounds with different numbers of units, after one that is not counted.
Result<void> CountRounds(const std::string& directory, const Names& names, Tensors&& few,
                         uint64_t few_units, Tensors&& many, uint64_t many_units) {
  CAIRN_TRY(WarmUp(directory + "/warm"));
  CAIRN_TRY(CountRound(directory + "/few", few_units, few, names));
  return CountRound(directory + "/many", many_units, many, names);
}

Result<void> CountSmallTensors(const std::string& directory) {
  return CountRounds(directory, {"tensor", "save_small", "save_unchanged_small", "load_small"},
                     Tensors(500, kTensorFloats), 500, Tensors(2500, kTensorFloats), 2500);
}

Result<void> CountPayload(const std::string& directory) {
  return CountRounds(directory, {"byte", "save_payload", "save_unchanged_payload", "load_payload"},
                     Tensors(1, 2 << 20), 8 << 20, Tensors(1, 10 << 20), 40 << 20);
}

Result<void> CountOpen(const std::string& directory) {
  {
    Tensors tensors(2000, kTensorFloats);
    CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, kv::OpenMode::kWrite,
                                                                   CountedOptions()));
    CAIRN_TRY(store->Save(1, tensors.state()));
    CAIRN_TRY(store->Close());
  }
  const auto open_and_find = [&]() -> Result<core::TensorInfo> {
    CAIRN_TRY_ASSIGN(const auto store,
                     core::CheckpointStore::Open(directory, kv::OpenMode::kRead, CountedOptions()));
    CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
    return store->FindTensor(steps.front(), "model.layers.00000.norm.weight");
  };
  CAIRN_TRY(open_and_find());
  CAIRN_TRY(Count("open_and_find", "open", 1, open_and_find));
  return {};
}

// --- The program

struct Case {
  const char* name;
  /// Runs the workload and counts parts of it. `directory` is empty and used by this case alone.
  Result<void> (*run)(const std::string& directory);
};

constexpr std::array kCases = {
    Case{"digest", CountDigest},
    Case{"gather_rows", [](const std::string&) { return CountGather("gather_rows", Rows()); }},
    Case{"gather_transposed",
         [](const std::string&) { return CountGather("gather_transposed", Transposed()); }},
    Case{"scatter_rows", [](const std::string&) { return CountScatter("scatter_rows", Rows()); }},
    Case{"scatter_transposed",
         [](const std::string&) { return CountScatter("scatter_transposed", Transposed()); }},
    Case{"chunk_key", CountChunkKeys},
    Case{"small_tensors", CountSmallTensors},
    Case{"payload", CountPayload},
    Case{"open", CountOpen},
};

int Run(const std::filesystem::path& directory, const std::vector<std::string_view>& names) {
#ifndef __OPTIMIZE__
  std::fprintf(stderr,
               "cairn_regression: built without optimization, so its counts are not meaningful\n");
  return 2;
#endif
  // The counts depend on these versions besides our code. Valgrind presents the same processor to
  // the program on every machine with AVX2.
#ifdef __x86_64__
  const bool has_avx2 = __builtin_cpu_supports("avx2");
#else
  const bool has_avx2 = false;
#endif
  std::printf("toolchain g++ %d, RocksDB %d.%d, %s\n", __GNUC__, ROCKSDB_MAJOR, ROCKSDB_MINOR,
              has_avx2 ? "AVX2" : "no AVX2");
  for (const Case& one : kCases) {
    if (!names.empty() && std::ranges::find(names, one.name) == names.end()) continue;
    const auto case_directory = directory / one.name;
    std::filesystem::create_directories(case_directory);
    if (const auto done = one.run(case_directory.string()); !done) {
      std::fprintf(stderr, "cairn_regression: %s: %s\n", one.name, done.error().ToString().c_str());
      return 2;
    }
    std::filesystem::remove_all(case_directory);
  }
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: cairn_regression DIRECTORY [CASE...]\n");
    return 2;
  }
  return cairn::bench::Run(argv[1], std::vector<std::string_view>(argv + 2, argv + argc));
}
