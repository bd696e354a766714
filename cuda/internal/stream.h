#pragma once
/// Owners of CUDA streams and events.

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/internal/cuda_call.h"

namespace cairn::cuda::internal {

/// A point in the work of a stream. Does not measure time, so that recording it is cheap.
/// Ownership: move-only. Threads: all const members are safe.
class Event {
 public:
  Event() = default;
  /// Creates an event of the current device.
  static Result<Event> Make() {
    Event event;
    // Waits sleep instead of spinning: the cores are needed for digests and files.
    CAIRN_TRY(Check(
        cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming | cudaEventBlockingSync),
        "creating an event"));
    return event;
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) Ignore(cudaEventDestroy(event_));
  }

  cudaEvent_t get() const { return event_; }

  /// Sets the event to the point after all work that `stream` contains now.
  Result<void> Record(cudaStream_t stream) const {
    return Check(cudaEventRecord(event_, stream), "recording an event");
  }
  /// Blocks the calling thread until the point has passed.
  Result<void> Wait() const { return Check(cudaEventSynchronize(event_), "waiting for the GPU"); }
  /// Returns true if the point has passed.
  Result<bool> Passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    CAIRN_TRY(Check(status, "querying the progress of the GPU"));
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream that does not wait for other streams implicitly.
/// Ownership: move-only; the destructor waits for the work that the stream still contains.
class Stream {
 public:
  Stream() = default;
  enum class Priority { kLeast, kGreatest };
  /// Creates a stream of the current device. Kernels of a stream with a higher priority get the
  /// multiprocessors that become free first.
  static Result<Stream> Make(Priority priority = Priority::kLeast) {
    int least = 0;
    int greatest = 0;
    CAIRN_TRY(
        Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "querying stream priorities"));
    Stream stream;
    CAIRN_TRY(Check(cudaStreamCreateWithPriority(&stream.stream_, cudaStreamNonBlocking,
                                                 priority == Priority::kLeast ? least : greatest),
                    "creating a stream"));
    return stream;
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream() {
    if (stream_ == nullptr) return;
    Ignore(cudaStreamSynchronize(stream_));
    Ignore(cudaStreamDestroy(stream_));
  }

  cudaStream_t get() const { return stream_; }

  /// Makes work that is enqueued from now on run after `event`. Does not block.
  Result<void> WaitFor(const Event& event) const {
    return Check(cudaStreamWaitEvent(stream_, event.get(), 0), "making a stream wait");
  }
  /// Blocks the calling thread until all work of the stream is done. Sleeps if an event can be
  /// created, and spins otherwise.
  Result<void> Synchronize() const {
    // If the event failed, the stream itself still reports whether it has finished.
    if (const auto now = Event::Make(); now && now->Record(stream_) && now->Wait()) return {};
    return Check(cudaStreamSynchronize(stream_), "waiting for the GPU");
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace cairn::cuda::internal
