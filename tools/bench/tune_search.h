#pragma once
/// The search of kv-bench tune: which I/O settings to try, how often, and when to stop.
///
///   1. Coarse: a grid of block sizes and depths, and the defaults with each engine, with and
///      without O_DIRECT, once each. The better half and the defaults are run twice more.
///   2. Refinement: the neighbors of the best settings (block size and depth doubled and halved,
///      the other engine, O_DIRECT toggled) and the best settings themselves, three times; this
///      is repeated if the best settings changed.
///   3. The best settings and the defaults, three times more, in turns. Only these runs decide
///      whether the defaults are good enough: the best of many noisy figures is biased.
/// The settings of a round take turns, so that a disk that becomes slower affects all of them.

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "kv/error.h"
#include "kv/options.h"

namespace cairn::tools {

/// One durable save and one cold load.
struct TuneRun {
  double save_seconds = 0;
  double load_seconds = 0;
  uint64_t peak_beyond_tensors_bytes = 0;
};

struct TuneFigures {
  double save_seconds = 0;  // medians
  double load_seconds = 0;
  /// Geometric mean of the two, so that the same relative change of either counts the same.
  double both_seconds = 0;
  uint64_t peak_beyond_tensors_bytes = 0;  // maximum
};
/// Returns the figures of a series of runs. Requires at least one run.
TuneFigures Summarize(const std::vector<TuneRun>& runs);

struct TuneTrial {
  kv::IoOptions io;
  std::vector<TuneRun> runs;
};

/// What this machine and directory support.
struct TuneLimits {
  bool uring = true;
  bool direct = true;
  std::chrono::duration<double> budget{75};  // no run of phases 1 and 2 begins later
};

struct TuneResult {
  std::vector<TuneTrial> trials;  // fastest first; each with at least one run
  TuneTrial best;                 // with the runs of phase 3
  TuneTrial defaults;             // with the runs of phase 3; equals `best` if nothing was better
};

/// Upper bound for the runs of a search, for a progress line.
uint64_t MaxTuneRuns();
bool SameSettings(const kv::IoOptions& a, const kv::IoOptions& b);

/// Searches for the best settings. `run` measures settings once; its errors end the search.
Result<TuneResult> SearchSettings(const TuneLimits& limits,
                                  const std::function<Result<TuneRun>(const kv::IoOptions&)>& run);

}  // namespace cairn::tools
