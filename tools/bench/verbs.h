#pragma once
/// The verbs of kv-bench, and their options.

#include <cstdint>
#include <string>

#include "kv/base/error.h"
#include "tools/bench/report.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct BenchOptions {
  std::string directory;
  uint64_t bytes = 1 << 30;
  uint64_t repeat = 1;
  bool fio = false;
  bool warm = false;
  double changed_percent = 0;
  uint64_t chunks = 1'000'000;
  uint64_t steps = 1;
  uint64_t tensors = 0;  // 0: as many as in a model
  uint64_t ranks = 16'384;
  int device = 0;    // gpu
  std::string part;  // gpu; empty: all parts
};

// --- kv-bench save and incremental: durable saves of a complete model

/// Measures full saves into a new store.
Result<void> BenchSave(const BenchOptions& options, BenchReport& report);
/// Measures saves on top of an earlier step: nothing changed, and a share of the tensors changed.
Result<void> BenchIncremental(const BenchOptions& options, BenchReport& report);

// --- kv-bench load: loads of a complete model

/// Measures loads of all tensors. kDataLoss: a loaded byte differs from what was saved.
Result<void> BenchLoad(const BenchOptions& options, BenchReport& report);

// --- kv-bench open: how long a new process takes to open a large store and read its first
// key, compared with RocksDB opening the table alone.

Result<void> BenchOpen(const BenchOptions& options, BenchReport& report);

/// Runs in the process that BenchOpen starts: opens the store in `directory`, reads its first key
/// and prints the times as one JSON object.
Result<void> BenchOpenChild(const std::string& directory, Output& out);

/// Runs in the process that BenchOpen starts: opens the table `path` with RocksDB alone, seeks its
/// first record and prints the time as a JSON object.
Result<void> BenchTableChild(const std::string& path, Output& out);

// --- kv-bench commit: what rank 0 of a large job does for a step

/// Measures the commit of a step whose other ranks are simulated.
Result<void> BenchCommit(const BenchOptions& options, BenchReport& report);

// --- kv-bench gpu: copies, digests, saves and loads of a GPU
// Implemented in gpu_bench.cc, or in gpu_without_cuda.cc in builds without the CUDA layer.

/// Measures a GPU. kFailedPrecondition: this machine has no GPU. kUnimplemented: this build has no
/// CUDA layer.
Result<void> BenchGpu(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
