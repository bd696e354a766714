// Calls on a watched thread, and the end of Gloo's and NCCL's communicators.

#include "python/src/communicator_binding.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <utility>

#include "core/ranks/gather_v.h"
#include "core/ranks/gather_values.h"
#include "core/ranks/local_communicator.h"
#include "kv/base/catch_exhaustion.h"
#include "python/src/keyword_arguments.h"

#ifdef CAIRN_HAS_CUDA
#include "core/device/device.h"
#include "cuda/nccl_communicator.h"
#endif

namespace cairn::python {
CommunicatorBinding::CommunicatorBinding(const core::GlooOptions& options)
    : rank_(options.rank), world_size_(options.world_size) {
  auto connected = [&] {
    const GilRelease no_gil;
    return core::ConnectGloo(options);
  }();
  communicator_ = Unwrap(std::move(connected));
}

CommunicatorBinding::CommunicatorBinding()
    : communicator_(std::make_unique<core::LocalCommunicator>()) {}

CommunicatorBinding::~CommunicatorBinding() {
  // Sockets and threads belong to the parent; the objects are leaked.
  if (!process_.is_same_process()) {
    (void)tensors_.release();
    (void)communicator_.release();
    return;
  }
  const GilRelease no_gil;
  if (stop_) stop_->Request("closed");  // do not wait for peers, as in DisconnectDevices
  communicator_.reset();                // the other ranks notice
  Release(std::move(tensors_));
}

void CommunicatorBinding::ConnectDevices([[maybe_unused]] int device,
                                         [[maybe_unused]] double connect_timeout) {
#ifdef CAIRN_HAS_CUDA
  {
    const std::lock_guard alive(life_mutex_);
    stop_ = std::make_shared<cuda::NcclStop>();
  }
  // Only ranges in host memory pass through the buffers, and they are small.
  constexpr uint64_t kBufferBytes = 16 << 20;
  const std::chrono::milliseconds to_connect = ToTimeout(connect_timeout);
  Unwrap(Use([&](core::Communicator& ranks) -> Result<void> {
    CAIRN_TRY_ASSIGN(auto connected, cuda::ConnectNccl(ranks, {.device = device,
                                                               .timeout = ranks.timeout(),
                                                               .connect_timeout = to_connect,
                                                               .buffer_bytes = kBufferBytes,
                                                               // Device queues wait for streams.
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
  const GilRelease no_gil;
  std::unique_ptr<core::Communicator> tensors;
  {
    const std::lock_guard one_call(mutex_);
    const std::lock_guard alive(life_mutex_);
    // Does not wait for peers: every call has ended with a message from all of them.
    if (stop_) stop_->Request("closed");
    tensors = std::move(tensors_);
  }
  Release(std::move(tensors));
}

Result<core::Communicator*> CommunicatorBinding::TensorCommunicator(bool by_nccl) const {
  if (!by_nccl) return nullptr;
  if (tensors_ != nullptr) return tensors_.get();
  return Fail(
      ErrorCode::kFailedPrecondition,
      "cannot send tensors over NCCL, which this rank has released: open the store again on "
      "all ranks");
}

nb::list CommunicatorBinding::Arrive(const std::string& call, double timeout) {
  std::array<char, kMaxCallBytes> name{};
  if (call.size() >= name.size()) ThrowInvalid("the name of a call is too long", call);
  std::ranges::copy(call, name.begin());
  auto gathered = Use([&](core::Communicator& communicator) {
    communicator.LimitNextCall(ToTimeout(timeout));
    return core::AllGatherValues(communicator, name);
  });
  nb::list result;
  for (const auto& other : Unwrap(std::move(gathered))) {
    result.append(nb::str(other.data(), ::strnlen(other.data(), other.size())));
  }
  return result;
}

nb::list CommunicatorBinding::AllGather(nb::bytes mine) {
  const core::ByteView bytes(reinterpret_cast<const std::byte*>(mine.c_str()), mine.size());
  auto gathered =
      Use([&](core::Communicator& communicator) { return core::AllGatherV(communicator, bytes); });
  nb::list result;
  for (const core::ByteVector& part : Unwrap(std::move(gathered))) {
    result.append(nb::bytes(part.data(), part.size()));
  }
  return result;
}

void CommunicatorBinding::Leave(const std::string& why) {
  process_.Check();
  const GilRelease no_gil;
  LeaveWithoutGil(why);
}

void CommunicatorBinding::LeaveWithoutGil(const std::string& why) {
  Interrupt("this rank has left the communicator");
  std::unique_ptr<core::Communicator> tensors;
  {
    const std::lock_guard one_call(mutex_);
    const std::lock_guard alive(life_mutex_);
    if (communicator_) why_left_ = why;
    communicator_.reset();  // the other ranks notice, however long NCCL's end takes
    tensors = std::move(tensors_);
  }
  Release(std::move(tensors));
}

void CommunicatorBinding::Release(std::unique_ptr<core::Communicator> tensors) {
  if (tensors == nullptr) return;
  // Enough for a device that is not busy.
  constexpr auto kLongestWait = std::chrono::seconds(1);
  std::packaged_task<void()> task([gone = std::move(tensors)]() mutable { gone.reset(); });
  const std::future<void> ended = task.get_future();
  auto started = kv::StartThread("the end of NCCL", std::move(task));
  if (!started) return;  // the destructor of the task has freed it
  started->detach();
  (void)ended.wait_for(kLongestWait);
}

void CommunicatorBinding::Interrupt(const char* why) {
  const std::lock_guard alive(life_mutex_);
  if (stop_) stop_->Request(why);
  if (communicator_) communicator_->Interrupt();
  for (SignalWatch* const watch : watches_) watch->ReleaseWorker();
}

void CommunicatorBinding::WatchRanks() {
  const std::lock_guard alive(life_mutex_);
  if (!stop_ || !communicator_) return;
  // The call may use TCP now, where it would wait for ranks that are still in NCCL.
  if (stop_->has_failed()) return communicator_->Interrupt();
  if (stop_->is_requested()) return;
  if (const auto checked = communicator_->CheckPeers(); !checked) {
    stop_->Request(checked.error().message);
  }
}

Result<void> CommunicatorBinding::RunWatched(SignalWatch& watch,
                                             const std::function<void()>& call) {
  if (world_size_ == 1) {  // there is nothing to wait for
    call();
    return {};
  }
  thread_local const CommunicatorBinding* waits_for = nullptr;
  if (waits_for == this) {
    return Fail(ErrorCode::kFailedPrecondition,
                "a progress function of a call of all ranks cannot make another one");
  }
  std::packaged_task<void()> task([&] {
    const std::unique_ptr<SignalWatch, void (*)(SignalWatch*)> end(
        &watch, [](SignalWatch* watch) { watch->SetEnded(); });
    call();
  });
  std::future<void> result = task.get_future();
  {
    const std::lock_guard alive(life_mutex_);
    watches_.push_back(&watch);  // may throw, so before there is a thread
  }
  auto started = kv::StartThread("a call of all ranks", std::move(task));
  const CommunicatorBinding* const outer = std::exchange(waits_for, this);
  bool is_interrupted = false;
  while (started && !watch.AwaitEnd()) {
    if (is_interrupted) continue;
    WatchRanks();
    if (watch.Check()) continue;
    is_interrupted = true;
    Interrupt("interrupted on this rank");
  }
  {
    const std::lock_guard alive(life_mutex_);
    std::erase(watches_, &watch);
  }
  waits_for = outer;
  if (!started) return Fail(std::move(started).error());
  // The call borrows memory of the caller, so it must end before this returns.
  started->join();
  // The other ranks notice a failure over NCCL only when the connections close.
  const bool has_failed = [&] {
    const std::lock_guard alive(life_mutex_);
    return stop_ && stop_->has_failed();
  }();
  if (is_interrupted || has_failed) {
    LeaveWithoutGil(is_interrupted ? "a call was interrupted" : "a call over NCCL has failed");
  }
  result.get();
  return {};
}

std::unexpected<Error> CommunicatorBinding::LeftError() const {
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("this rank has left the communicator ({}): open the store again on all "
                          "ranks",
                          why_left_));
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
