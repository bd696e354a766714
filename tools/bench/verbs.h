#pragma once
/// The verbs of kv-bench.

#include <cstdint>
#include <string>

#include "kv/error.h"
#include "tools/bench/report.h"

namespace cairn::tools::internal {

struct BenchOptions {
  std::string directory;
  uint64_t bytes = 1 << 30;
  uint64_t repeat = 1;
  bool fio = false;
  bool warm = false;
  double changed_percent = 0;
  uint64_t chunks = 1'000'000;
  uint64_t ranks = 16'384;
  int device = 0;    // gpu
  std::string part;  // gpu; empty: all
};

Result<void> BenchSave(const BenchOptions& options, BenchReport& report);
Result<void> BenchLoad(const BenchOptions& options, BenchReport& report);
Result<void> BenchPartial(const BenchOptions& options, BenchReport& report);
Result<void> BenchIncremental(const BenchOptions& options, BenchReport& report);
Result<void> BenchOpen(const BenchOptions& options, BenchReport& report);
Result<void> BenchCommit(const BenchOptions& options, BenchReport& report);
Result<void> BenchPlan(const BenchOptions& options, BenchReport& report);
Result<void> BenchDigest(const BenchOptions& options, BenchReport& report);
/// kFailedPrecondition, kUnimplemented: there is no GPU, or this build has no CUDA layer.
Result<void> BenchGpu(const BenchOptions& options, BenchReport& report);
/// Prints a table, or one JSON object a row, of its own: its rows are settings and not runs.
Result<void> BenchTune(const BenchOptions& options, bool json, Output& out);

/// The part of BenchOpen that runs in a process of its own: opens the store `directory`, reads its
/// first key and prints one JSON object with the times.
Result<void> BenchOpenChild(const std::string& directory, Output& out);

/// Writes back and drops the pages of every file below `directory` from the page cache, so that
/// what is read next comes from the device.
Result<void> EvictFromPageCache(const std::string& directory);

}  // namespace cairn::tools::internal
