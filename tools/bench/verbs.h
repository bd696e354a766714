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
  uint64_t repeat = 1;
  uint64_t chunks = 1'000'000;  // open, commit
  uint64_t steps = 1;           // open
  uint64_t ranks = 16'384;      // commit
  uint64_t bytes = 1 << 30;     // all others
  int device = 0;               // gpu
  std::string part;             // gpu; empty: all parts
};

/// Measures durable saves of a model into new stores.
Result<void> BenchSave(const BenchOptions& options, BenchReport& report);

/// Measures loads of a model from the disk, and checks the loaded bytes.
Result<void> BenchLoad(const BenchOptions& options, BenchReport& report);

/// Measures loads of every 100th tensor of a model, as BenchLoad does.
Result<void> BenchPartial(const BenchOptions& options, BenchReport& report);

/// Measures saves of a model of which nothing and 1 % of the tensors has changed.
Result<void> BenchIncremental(const BenchOptions& options, BenchReport& report);

/// Measures the page digests of a model.
Result<void> BenchDigest(const BenchOptions& options, BenchReport& report);

/// Measures how long a new process takes to open a large store and read its first key.
Result<void> BenchOpen(const BenchOptions& options, BenchReport& report);

/// Runs in the process that BenchOpen starts: opens the store in `directory`, reads its first key
/// and prints the times as one JSON object.
Result<void> BenchOpenChild(const std::string& directory, Output& out);

/// Measures what rank 0 of a large job, whose other ranks are simulated, does to commit a step.
Result<void> BenchCommit(const BenchOptions& options, BenchReport& report);

/// Measures copies and digests of a GPU. Implemented in gpu.cc, or in gpu_without_cuda.cc in builds
/// without the CUDA layer. kFailedPrecondition: this machine has no
/// GPU. kUnimplemented: this build has no CUDA layer.
Result<void> BenchGpu(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
