#pragma once
/// The report of a store that may change.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "kv/base/error.h"
#include "kv/read/snapshot.h"

namespace cairn::tools {

/// Threads: all members are safe.
class LiveReport {
 public:
  /// `store` must outlive this object.
  LiveReport(const core::CheckpointStore* store, bool all_steps);

  struct Document {
    std::string json;     // ReportJson, with a member "live"
    std::string version;  // version of the store, as Version returned it
  };
  /// Returns the report, which is collected again if the store has changed. A report takes at most
  /// a tenth of the time of a core: while one is collected, and until nine times as long has passed
  /// as this took, returns the last one. Errors: see core::CollectReport.
  Result<std::shared_ptr<const Document>> Current(const core::Progress& progress = {});

  struct State {
    std::string version;  // changes with each commit, delete and compaction
    std::shared_ptr<const kv::Snapshot> snapshot;
  };
  /// Returns the committed state. Errors and cost: see Store::Latest.
  Result<State> Latest();

 private:
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<const Document> Last();
  Result<std::shared_ptr<const Document>> Collect(const State& state,
                                                  const core::Progress& progress) const;

  const core::CheckpointStore* store_;
  bool all_steps_;
  std::string start_;  // distinguishes this object from objects of other processes

  std::mutex state_mutex_;
  std::shared_ptr<const kv::Snapshot> snapshot_;  // the last one that was seen
  uint64_t changes_ = 0;
  std::shared_ptr<const Document> document_;  // the last one; null: none yet

  std::mutex collect_mutex_;  // held by the thread that collects
  Clock::time_point next_collection_;
};

}  // namespace cairn::tools
