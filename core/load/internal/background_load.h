#pragma once
/// A load on another thread.

#include <chrono>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"
#include "kv/base/mutex.h"

namespace cairn::core::internal {

/// Begins RunLoad when it is constructed, with `view` or newer ones (WithView). Ownership: the
/// store, the view, the streams and the targets outlive it; the destructor cancels the load and
/// waits for its end. Threads: one at a time.
class BackgroundLoad {
 public:
  BackgroundLoad(const kv::Store& store, const StepView& view, std::vector<LoadRequest> requests,
                 std::span<const DeviceStream> streams);
  ~BackgroundLoad();
  BackgroundLoad(const BackgroundLoad&) = delete;
  BackgroundLoad& operator=(const BackgroundLoad&) = delete;

  /// Waits for the end of the load, at most for `timeout`. Returns whether it has ended.
  bool WaitFor(std::chrono::milliseconds timeout);
  /// Bytes of the requests that have been loaded.
  uint64_t done_bytes() const;
  /// Makes the load end soon, with kCancelled.
  void Cancel();
  /// Returns the result. Requires that the load has ended; call once.
  Result<LoadReport> Take();

 private:
  Result<LoadReport> Load(const kv::Store& store, const StepView& view,
                          std::span<const LoadRequest> requests,
                          std::span<const DeviceStream> streams);

  const std::vector<LoadRequest> requests_;
  mutable Mutex mutex_;
  CondVar ended_;
  bool cancelled_ CAIRN_GUARDED_BY(mutex_) = false;
  uint64_t done_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::optional<Result<LoadReport>> result_ CAIRN_GUARDED_BY(mutex_);  // set at the end
  std::thread thread_;
};

}  // namespace cairn::core::internal
