#include "core/load/internal/background_load.h"

#include <optional>
#include <utility>

#include "core/base/internal/catch_bad_alloc.h"
#include "core/load/internal/load.h"

namespace cairn::core::internal {

BackgroundLoad::BackgroundLoad(const StepView& view, std::vector<LoadRequest> requests,
                               std::span<const DeviceStream> streams)
    : thread_([this, &view, requests = std::move(requests), streams] {
        Result<LoadReport> result = Load(view, requests, streams);
        const MutexLock lock(mutex_);
        result_ = std::move(result);
        ended_.NotifyAll();
      }) {}

BackgroundLoad::~BackgroundLoad() {
  Cancel();
  thread_.join();
}

Result<LoadReport> BackgroundLoad::Load(const StepView& view, std::span<const LoadRequest> requests,
                                        std::span<const DeviceStream> streams) {
  const Progress progress = [this](uint64_t done, uint64_t) {
    const MutexLock lock(mutex_);
    done_bytes_ = done;
    return !cancelled_;
  };
  return CatchBadAlloc("a load", [&] { return RunLoad(view, requests, progress, streams); });
}

bool BackgroundLoad::WaitFor(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(mutex_);
  while (!result_ && ended_.WaitUntil(mutex_, deadline)) {
  }
  return result_.has_value();
}

uint64_t BackgroundLoad::done_bytes() const {
  const MutexLock lock(mutex_);
  return done_bytes_;
}

void BackgroundLoad::Cancel() {
  const MutexLock lock(mutex_);
  cancelled_ = true;
}

Result<LoadReport> BackgroundLoad::Take() {
  const MutexLock lock(mutex_);
  return *std::exchange(result_, std::nullopt);
}

}  // namespace cairn::core::internal
