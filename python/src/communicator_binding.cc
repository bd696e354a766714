// Gloo's communicator, and NCCL's beside it, below a lock; and byte strings in and out of it.

#include "python/src/communicator_binding.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/ranks/gather_v.h"
#include "core/ranks/gloo_communicator.h"
#include "core/ranks/local_communicator.h"

#ifdef CAIRN_HAS_CUDA
#include "cuda/nccl_communicator.h"
#endif

namespace cairn::python {
namespace {

std::chrono::milliseconds ToMilliseconds(double seconds) {
  // A month is for ever here, and far from overflowing a clock.
  constexpr double kMost = 30.0 * 24 * 3600;
  if (!(seconds > 0)) ThrowInvalid("a timeout is a number of seconds above 0");
  return std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(std::min(seconds, kMost) * 1000)));
}

/// A thread that takes none of the program's signals.
std::thread StartWithoutSignals(std::packaged_task<void()> task) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::thread thread;
  try {
    thread = std::thread(std::move(task));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return thread;
}

}  // namespace

CommunicatorBinding::CommunicatorBinding(int rank, int world_size, const std::string& rendezvous,
                                         const std::string& run_id, const std::string& interface,
                                         double connect_timeout, double timeout)
    : rank_(rank), world_size_(world_size) {
  const core::GlooOptions options{.rank = rank,
                                  .world_size = world_size,
                                  .rendezvous = rendezvous,
                                  .run_id = run_id,
                                  .interface = interface,
                                  .connect_timeout = ToMilliseconds(connect_timeout),
                                  .timeout = ToMilliseconds(timeout)};
  auto connected = [&] {
    nb::gil_scoped_release no_gil;
    return core::ConnectGloo(options);
  }();
  communicator_ = Unwrap(std::move(connected));
}

CommunicatorBinding::CommunicatorBinding()
    : communicator_(std::make_unique<core::LocalCommunicator>()) {}

CommunicatorBinding::~CommunicatorBinding() {
  // Sockets and threads are the parent's; the object is left as it is.
  if (!process_.is_same_process()) {
    (void)tensors_.release();
    (void)communicator_.release();
    return;
  }
  const nb::gil_scoped_release no_gil;
  if (stop_) stop_->Request("closed");  // as in DisconnectDevices
  communicator_.reset();                // tells the others
  GiveBack(std::move(tensors_));
}

void CommunicatorBinding::ConnectDevices([[maybe_unused]] int device,
                                         [[maybe_unused]] double connect_timeout) {
#ifdef CAIRN_HAS_CUDA
  {
    const std::lock_guard alive(life_mutex_);
    stop_ = std::make_shared<cuda::NcclStop>();
  }
  // Passed by what lies in host memory alone, which is not much.
  constexpr uint64_t kBufferBytes = 16 << 20;
  const std::chrono::milliseconds to_connect = ToMilliseconds(connect_timeout);
  Unwrap(Use([&](core::Communicator& ranks) -> Result<void> {
    CAIRN_TRY_ASSIGN(auto connected, cuda::ConnectNccl(ranks, {.device = device,
                                                               .timeout = ranks.timeout(),
                                                               .connect_timeout = to_connect,
                                                               .buffer_bytes = kBufferBytes,
                                                               // Queues have waited for them.
                                                               .follows_no_stream = true,
                                                               .stop = stop_}));
    const std::lock_guard alive(life_mutex_);
    tensors_ = std::move(connected);
    return {};
  }));
#else
  (void)DescribeNccl();
#endif
}

void CommunicatorBinding::DisconnectDevices() {
  process_.Check();
  nb::gil_scoped_release no_gil;
  std::unique_ptr<core::Communicator> tensors;
  {
    const std::lock_guard one_call(mutex_);
    const std::lock_guard alive(life_mutex_);
    // No wait for NCCL's peers: each call has ended with a word from all of them.
    if (stop_) stop_->Request("closed");
    tensors = std::move(tensors_);
  }
  GiveBack(std::move(tensors));
}

Result<core::Communicator*> CommunicatorBinding::CarrierOf(bool by_nccl) const {
  if (!by_nccl) return nullptr;
  if (tensors_ != nullptr) return tensors_.get();
  return Fail(ErrorCode::kFailedPrecondition,
              "tensors were to go over NCCL, which this rank has given back: open the store again "
              "on all ranks");
}

nb::list CommunicatorBinding::AllGather(nb::bytes mine) {
  const core::ByteView bytes(reinterpret_cast<const std::byte*>(mine.c_str()), mine.size());
  auto gathered = Use(
      [&](core::Communicator& communicator) { return core::AllGatherV(communicator, bytes); });
  nb::list result;
  for (const core::ByteVector& part : Unwrap(std::move(gathered))) {
    result.append(nb::bytes(part.data(), part.size()));
  }
  return result;
}

void CommunicatorBinding::Leave() {
  process_.Check();
  nb::gil_scoped_release no_gil;
  LeaveWithoutGil();
}

void CommunicatorBinding::LeaveWithoutGil() {
  Interrupt("this rank has left the others");
  std::unique_ptr<core::Communicator> tensors;
  {
    const std::lock_guard one_call(mutex_);
    const std::lock_guard alive(life_mutex_);
    communicator_.reset();  // tells the others, whatever NCCL's end takes
    tensors = std::move(tensors_);
  }
  GiveBack(std::move(tensors));
}

void CommunicatorBinding::GiveBack(std::unique_ptr<core::Communicator> tensors) {
  if (tensors == nullptr) return;
  // Of a device that is not busy it takes no longer.
  constexpr auto kPatience = std::chrono::seconds(1);
  std::packaged_task<void()> task([gone = std::move(tensors)]() mutable { gone.reset(); });
  std::future<void> ended = task.get_future();
  try {
    StartWithoutSignals(std::move(task)).detach();
  } catch (const std::system_error&) {
    return;  // no threads left: freed by the task's own end
  }
  (void)ended.wait_for(kPatience);
}

void CommunicatorBinding::Interrupt(const char* why) {
  const std::lock_guard alive(life_mutex_);
  if (stop_) stop_->Request(why);
  if (communicator_) core::InterruptGloo(*communicator_);
}

void CommunicatorBinding::WatchRanks() {
  const std::lock_guard alive(life_mutex_);
  if (!stop_ || !communicator_) return;
  // The call may go on beside NCCL, where the others, who are in NCCL, do not come.
  if (stop_->has_failed()) return core::InterruptGloo(*communicator_);
  if (stop_->is_requested()) return;
  if (const auto checked = core::CheckGlooConnections(*communicator_); !checked) {
    stop_->Request(checked.error().message);
  }
}

void CommunicatorBinding::RunWatched(SignalWatch& watch, const std::function<void()>& call) {
  // Of one rank: there is nobody to wait for.
  if (world_size_ == 1) return call();
  constexpr auto kSlice = std::chrono::milliseconds(50);
  std::packaged_task<void()> task(call);
  std::future<void> ended = task.get_future();
  std::thread thread = StartWithoutSignals(std::move(task));
  bool is_interrupted = false;
  while (ended.wait_for(kSlice) != std::future_status::ready) {
    if (is_interrupted) continue;
    WatchRanks();
    if (watch.Check()) continue;
    is_interrupted = true;
    Interrupt("interrupted on this rank");
  }
  // What the call borrows is the caller's: it has ended before anybody returns.
  thread.join();
  // The others learn of what has failed over NCCL by the connections alone.
  const bool has_failed = [&] {
    const std::lock_guard alive(life_mutex_);
    return stop_ && stop_->has_failed();
  }();
  if (is_interrupted || has_failed) LeaveWithoutGil();
  ended.get();
}

std::unexpected<Error> CommunicatorBinding::Gone() {
  return Fail(ErrorCode::kFailedPrecondition,
              "this rank has left the others after an error: open the store again on all ranks");
}

std::string DescribeNccl() {
#ifdef CAIRN_HAS_CUDA
  (void)Unwrap(core::FindDeviceBackend());
  return Unwrap(cuda::DescribeNccl());
#else
  ThrowInvalid("this build of Cairn has no CUDA layer");
#endif
}

}  // namespace cairn::python
