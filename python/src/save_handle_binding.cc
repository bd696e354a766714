#include "python/src/save_handle_binding.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kv/base/error.h"
#include "python/src/errors.h"
#include "python/src/gil.h"

namespace cairn::python {

void SaveHandleBinding::WaitStaged() const {
  process_.Check();
  const GilRelease no_gil;
  handle_.WaitStaged();
}

void SaveHandleBinding::MakeStreamWait(int device, uintptr_t stream) const {
  process_.Check();
  Unwrap(OutsideGil([&] {
    return handle_.MakeStreamWait({.device = device, .stream = reinterpret_cast<void*>(stream)});
  }));
}

bool SaveHandleBinding::Wait(std::optional<double> timeout_seconds) const {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  process_.Check();
  // A year is indefinite in practice, and does not overflow the clock.
  const double given = timeout_seconds.value_or(3e7);
  if (std::isnan(given)) ThrowInvalid("a timeout is a number of seconds");
  const double seconds = std::clamp(given, 0.0, 3e7);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  SignalWatch watch;
  const auto may_continue = [&] {
    const uint64_t total = progress_->total_bytes.load(std::memory_order_relaxed);
    if (total == 0) return watch.Check();
    return watch.Report(progress_->done_bytes.load(std::memory_order_relaxed), total);
  };
  bool ended = false;
  bool is_stopped = false;
  {
    const GilRelease no_gil;
    while (!is_stopped) {  // in slices, so that Ctrl-C ends the wait (and not the save)
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      ended = handle_.WaitFor(std::clamp(left, milliseconds(0), WaitSlice()));
      if (ended || left <= milliseconds(0)) break;
      is_stopped = !may_continue();
    }
  }
  watch.Rethrow();
  if (is_stopped) {
    Throw(Error{.code = ErrorCode::kCancelled,
                .message = "the wait was stopped, because progress= returned False; the save "
                           "continues in the background"});
  }
  return ended;
}

bool SaveHandleBinding::done() const {
  process_.Check();
  return handle_.done();
}

core::SaveReport SaveHandleBinding::Report() const {
  process_.Check();
  return Unwrap(OutsideGil([&] { return handle_.Wait(); }));
}

}  // namespace cairn::python
