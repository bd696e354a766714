// The search of kv-bench tune.

#include "tools/bench/tune_search.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "tools/bench/median.h"

namespace cairn::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMinBlockBytes = 256 << 10;
constexpr uint64_t kMaxBlockBytes = 16 << 20;
constexpr uint32_t kMinDepth = 2;
constexpr uint32_t kMaxDepth = 32;
constexpr uint64_t kMaxPoolBytes = 128 << 20;

constexpr uint64_t kCoarseTrials = 12;
constexpr uint64_t kNeighbors = 6;
constexpr uint64_t kRefinements = 2;
constexpr uint64_t kTurns = 3;

bool InRange(const kv::IoOptions& io) {
  return io.block_bytes >= kMinBlockBytes && io.block_bytes <= kMaxBlockBytes &&
         io.queue_depth >= kMinDepth && io.queue_depth <= kMaxDepth &&
         io.block_bytes * io.queue_depth <= kMaxPoolBytes;
}

class Search {
 public:
  using Run = std::function<Result<TuneRun>(const kv::IoOptions&)>;

  Search(const TuneLimits& limits, const Run& run) : limits_(limits), run_(run) {}

  Result<TuneResult> Go() {
    CAIRN_TRY(Coarse());
    for (uint64_t i = 0; i < kRefinements; ++i) {
      const kv::IoOptions before = trials_[Ranked().front()].io;
      CAIRN_TRY(Refine(before));
      if (SameSettings(trials_[Ranked().front()].io, before)) break;
    }
    return Decide();
  }

 private:
  /// The defaults as this machine supports them: without io_uring they use threads.
  kv::IoOptions Defaults() const {
    kv::IoOptions io;
    io.uring = limits_.uring;
    io.direct = limits_.direct;
    return io;
  }

  /// Returns the index of the trial with these settings, which is added if there is none; nothing
  /// if this machine does not support them.
  std::optional<size_t> Add(const kv::IoOptions& io) {
    if (!InRange(io) || (io.uring && !limits_.uring) || (io.direct && !limits_.direct)) {
      return std::nullopt;
    }
    for (size_t i = 0; i < trials_.size(); ++i) {
      if (SameSettings(trials_[i].io, io)) return i;
    }
    trials_.push_back({.io = io, .runs = {}});
    return trials_.size() - 1;
  }

  Result<void> Round(std::vector<size_t> chosen, uint64_t turns) {
    for (uint64_t turn = 0; turn < turns; ++turn) {
      for (const size_t i : chosen) {
        // The defaults, which are the first trial, always have a run to compare with.
        if (!trials_.front().runs.empty() && Clock::now() - begin_ > limits_.budget) return {};
        CAIRN_TRY_ASSIGN(const TuneRun run, run_(trials_[i].io));
        trials_[i].runs.push_back(run);
      }
      if (!chosen.empty()) std::rotate(chosen.begin(), chosen.begin() + 1, chosen.end());
    }
    return {};
  }

  Result<void> Coarse() {
    for (const bool uring : {limits_.uring, !limits_.uring}) {
      for (const bool direct : {limits_.direct, !limits_.direct}) {
        kv::IoOptions io = Defaults();
        io.uring = uring;
        io.direct = direct;
        Add(io);
      }
    }
    for (const uint64_t block_bytes : {256 << 10, 1 << 20, 4 << 20, 16 << 20}) {
      for (const uint32_t depth : {4u, 16u}) {
        kv::IoOptions io = Defaults();
        io.block_bytes = block_bytes;
        io.queue_depth =
            static_cast<uint32_t>(std::min<uint64_t>(depth, kMaxPoolBytes / block_bytes));
        Add(io);
      }
    }
    std::vector<size_t> all(trials_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    // The first run of a process includes initialization, so it does not count.
    CAIRN_TRY(run_(Defaults()));
    CAIRN_TRY(Round(all, 1));
    std::vector<size_t> better = Ranked();
    better.resize((better.size() + 1) / 2);
    if (std::ranges::find(better, size_t{0}) == better.end()) better.push_back(0);
    return Round(better, kTurns - 1);
  }

  Result<void> Refine(const kv::IoOptions& best) {
    std::vector<kv::IoOptions> near(kNeighbors, best);
    near[0].block_bytes *= 2;
    near[1].block_bytes /= 2;
    near[2].queue_depth *= 2;
    near[3].queue_depth /= 2;
    near[4].uring = !best.uring;
    near[5].direct = !best.direct;
    std::set<size_t> chosen = {*Add(best)};
    for (const kv::IoOptions& io : near) {
      const auto index = Add(io);
      // A trial that has had its turns is known well enough.
      if (index && trials_[*index].runs.size() < kTurns) chosen.insert(*index);
    }
    if (chosen.size() == 1) return {};
    return Round({chosen.begin(), chosen.end()}, kTurns);
  }

  Result<TuneResult> Decide() {
    const std::vector<size_t> ranked = Ranked();
    // A single fast run may be an outlier.
    const auto steady =
        std::ranges::find_if(ranked, [this](size_t i) { return trials_[i].runs.size() >= kTurns; });
    const size_t best = steady == ranked.end() ? ranked.front() : *steady;
    TuneResult result{.trials = {},
                      .best = {.io = trials_[best].io, .runs = {}},
                      .defaults = {.io = Defaults(), .runs = {}}};
    for (uint64_t turn = 0; turn < kTurns; ++turn) {
      CAIRN_TRY_ASSIGN(const TuneRun run, run_(result.best.io));
      result.best.runs.push_back(run);
      if (SameSettings(result.best.io, result.defaults.io)) {
        result.defaults.runs.push_back(run);
        continue;
      }
      CAIRN_TRY_ASSIGN(const TuneRun default_run, run_(result.defaults.io));
      result.defaults.runs.push_back(default_run);
    }
    for (const size_t i : ranked) result.trials.push_back(trials_[i]);
    if (Summarize(result.defaults.runs).both_seconds <= Summarize(result.best.runs).both_seconds) {
      result.best = result.defaults;
    }
    return result;
  }

  /// Returns the indices of the trials that have runs, fastest first.
  std::vector<size_t> Ranked() const {
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < trials_.size(); ++i) {
      if (trials_[i].runs.empty()) continue;
      order.emplace_back(Summarize(trials_[i].runs).both_seconds, i);
    }
    std::sort(order.begin(), order.end());
    std::vector<size_t> ranked;
    for (const auto& [seconds, index] : order) ranked.push_back(index);
    return ranked;
  }

  const TuneLimits& limits_;
  const Run& run_;
  const Clock::time_point begin_ = Clock::now();
  std::vector<TuneTrial> trials_;  // the defaults are the first
};

}  // namespace

TuneFigures Summarize(const std::vector<TuneRun>& runs) {
  std::vector<double> saves;
  std::vector<double> loads;
  TuneFigures figures;
  for (const TuneRun& run : runs) {
    saves.push_back(run.save_seconds);
    loads.push_back(run.load_seconds);
    figures.peak_beyond_tensors_bytes =
        std::max(figures.peak_beyond_tensors_bytes, run.peak_beyond_tensors_bytes);
  }
  figures.save_seconds = Median(std::move(saves));
  figures.load_seconds = Median(std::move(loads));
  figures.both_seconds = std::sqrt(figures.save_seconds * figures.load_seconds);
  return figures;
}

uint64_t MaxTuneRuns() {
  return 1 + kCoarseTrials + (kCoarseTrials / 2 + 1) * (kTurns - 1) +
         kRefinements * (kNeighbors + 1) * kTurns + 2 * kTurns;
}

bool SameSettings(const kv::IoOptions& a, const kv::IoOptions& b) {
  return a.direct == b.direct && a.uring == b.uring && a.block_bytes == b.block_bytes &&
         a.queue_depth == b.queue_depth;
}

Result<TuneResult> SearchSettings(const TuneLimits& limits,
                                  const std::function<Result<TuneRun>(const kv::IoOptions&)>& run) {
  return Search(limits, run).Go();
}

}  // namespace cairn::tools
