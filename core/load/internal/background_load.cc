#include "core/load/internal/background_load.h"

#include <optional>
#include <utility>

#include "core/load/internal/load.h"
#include "kv/base/catch_exhaustion.h"

namespace cairn::core::internal {

BackgroundLoad::BackgroundLoad(const kv::Store& store, const StepView& view,
                               std::vector<LoadRequest> requests,
                               std::span<const DeviceStream> streams)
    : requests_(std::move(requests)) {
  const auto run = [this, &store, &view, streams] {
    Result<LoadReport> result = Load(store, view, requests_, streams);
    const MutexLock lock(mutex_);
    result_ = std::move(result);
    ended_.NotifyAll();
  };
  if (auto started = kv::StartThread("a load", run)) {
    thread_ = *std::move(started);
  } else {
    run();  // on this thread
  }
}

BackgroundLoad::~BackgroundLoad() {
  Cancel();
  if (thread_.joinable()) thread_.join();
}

Result<LoadReport> BackgroundLoad::Load(const kv::Store& store, const StepView& view,
                                        std::span<const LoadRequest> requests,
                                        std::span<const DeviceStream> streams) {
  const Progress progress = [this](uint64_t done, uint64_t) {
    const MutexLock lock(mutex_);
    done_bytes_ = done;
    return !cancelled_;
  };
  return kv::CatchExhaustion("a load", [&] {
    return WithView(store, view, [&](const StepView& current) {
      return RunLoad(current, requests, progress, streams);
    });
  });
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
