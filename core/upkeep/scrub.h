#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Verifies a store at a limited rate, once or again and again in the background.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "kv/base/error.h"
#include "kv/base/mutex.h"

namespace cairn::core {

/// The result of one pass.
struct ScrubReport {
  uint64_t bytes_read = 0;  // payload
  uint64_t steps = 0;       // at the end of the pass
  std::vector<Error> damage;
};

/// Verifies all steps of `store` as CheckpointStore::Verify does, with at most
/// `max_bytes_per_second` of payload on average (0: no limit), in requests of up to 32 MiB. The
/// limit does not apply to records, whose progress is separate. A writer may continue: what belongs
/// to steps that were deleted or rewritten during the pass is not reported. Errors: as in Verify.
Result<ScrubReport> ScrubOnce(const CheckpointStore& store, uint64_t max_bytes_per_second,
                              const Progress& progress = {}, const Progress& record_progress = {});

struct ScrubOptions {
  uint64_t max_bytes_per_second = 64 << 20;                  // 0: no limit
  std::chrono::milliseconds every = std::chrono::hours(24);  // from begin to begin of the passes
};

/// The state of a background scrub.
struct ScrubState {
  static constexpr size_t kMaxDamage = 1000;
  uint64_t passes = 0;            // completed passes
  uint64_t bytes_read = 0;        // in these
  std::vector<Error> damage;      // damage that the last pass found; at most kMaxDamage
  uint64_t damage_count = 0;      // number of damages in the last pass
  std::optional<Error> error;     // why the last pass could not be completed; it is repeated
  bool is_running = false;        // a pass
  uint64_t pass_bytes = 0;        // payload that the running or the last pass has verified
  uint64_t pass_total_bytes = 0;  // and has to verify; 0 while it checks records
};

/// A thread that scrubs a store through a separate handle, so that it sees new steps and can
/// outlive the handle of the caller. Threads: all members may be called from any thread.
class BackgroundScrub {
 public:
  /// Scrubs the store of `store`, which may be closed afterwards. Begins at once. Errors: see
  /// CheckpointStore::Open.
  static Result<std::unique_ptr<BackgroundScrub>> Start(const CheckpointStore& store,
                                                        const ScrubOptions& options = {});
  /// Stops.
  ~BackgroundScrub();
  BackgroundScrub(const BackgroundScrub&) = delete;
  BackgroundScrub& operator=(const BackgroundScrub&) = delete;

  ScrubState state() const;
  /// Ends the pass that is running after its current request, and waits for that.
  void Stop();

 private:
  BackgroundScrub(std::unique_ptr<CheckpointStore> store, const ScrubOptions& options)
      : store_(std::move(store)), options_(options) {}
  void Run();
  void RunPass();
  // Records the progress of the pass. Returns false once the scrub was stopped.
  bool Report(uint64_t done_bytes, uint64_t total_bytes);
  bool IsStopped() const;

  const std::unique_ptr<CheckpointStore> store_;
  const ScrubOptions options_;
  mutable Mutex mutex_;
  CondVar stopped_changed_;
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
  ScrubState state_ CAIRN_GUARDED_BY(mutex_);
  Mutex join_mutex_;    // two threads may call Stop
  std::thread thread_;  // set by Start
};

}  // namespace cairn::core
