#pragma once
/// The search of kv-bench tune: which I/O settings to try, how often, and when to stop.
///
///   1. Coarse: a grid of block sizes and depths, and the defaults with either engine and either
///      kind of file, once each. The better half and the defaults are run twice more.
///   2. Refinement: the neighbours of the best (block and depth doubled and halved, the other
///      engine, the other kind of file) and the best itself, three times; again if the best moved.
///   3. The best and the defaults, three times more, by turns. Only these runs decide whether the
///      defaults are fine: the best of many noisy figures looks better than it is.
/// The runs of a round take turns, so that a disk that slows down slows all settings down.

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "kv/error.h"
#include "kv/options.h"


namespace cairn::tools::internal {

/// One durable save and one cold load.
struct TuneRun {
  double save_seconds = 0;
  double load_seconds = 0;
  uint64_t peak_beyond_tensors_bytes = 0;
};

struct TuneFigures {
  double save_seconds = 0;  // medians
  double load_seconds = 0;
  /// Geometric mean of the two: a tenth off either counts the same.
  double both_seconds = 0;
  uint64_t peak_beyond_tensors_bytes = 0;  // largest
};
/// Requires at least one run.
TuneFigures Summarize(const std::vector<TuneRun>& runs);

struct TuneTrial {
  kv::IoOptions io;
  std::vector<TuneRun> runs;
};

/// What this machine and directory can do.
struct TuneLimits {
  bool uring = true;
  bool direct = true;
  std::chrono::duration<double> budget{75};  // no run of 1 and 2 begins after it
};

struct TuneResult {
  std::vector<TuneTrial> trials;  // fastest first; each with at least one run
  TuneTrial best;                 // runs: those of 3
  TuneTrial defaults;             // likewise; the same as `best` if nothing was better
};

/// The most runs that a search can take, for a progress line.
uint64_t MostTuneRuns();
bool SameSettings(const kv::IoOptions& a, const kv::IoOptions& b);

/// Errors are those of `run`, which measures once.
Result<TuneResult> SearchSettings(const TuneLimits& limits,
                                  const std::function<Result<TuneRun>(const kv::IoOptions&)>& run);

}  // namespace cairn::tools::internal
