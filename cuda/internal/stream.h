#pragma once
/// Streams and events that clean up after themselves.

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/internal/cuda_call.h"

namespace cairn::cuda::internal {

/// A point in a stream's work. Takes no times, so that recording it costs little.
/// Ownership: move-only. Threads: as the CUDA runtime's events, any.
class Event {
 public:
  Event() = default;
  /// Of the current device.
  static Result<Event> Make() {
    Event event;
    // Who waits sleeps: cores are for digests and files, not for spinning.
    CAIRN_TRY(Check(
        cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming | cudaEventBlockingSync),
        "making an event"));
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

  /// The point after all that `stream` holds now.
  Result<void> Record(cudaStream_t stream) const {
    return Check(cudaEventRecord(event_, stream), "recording an event");
  }
  /// Waits, on the host, until the point has been passed.
  Result<void> Wait() const { return Check(cudaEventSynchronize(event_), "waiting for the GPU"); }
  /// True once the point has been passed.
  Result<bool> Passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    CAIRN_TRY(Check(status, "asking the GPU how far it is"));
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream of our own, which waits for no other stream unless it is told to.
/// Ownership: move-only; the destructor waits for the work that the stream still holds.
class Stream {
 public:
  Stream() = default;
  /// Of the current device. Its work gives way to that of streams of higher priority.
  static Result<Stream> Make() {
    int least = 0;
    int greatest = 0;
    CAIRN_TRY(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
    Stream stream;
    CAIRN_TRY(Check(cudaStreamCreateWithPriority(&stream.stream_, cudaStreamNonBlocking, least),
                    "making a stream"));
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

  /// What comes from here on runs after `event`.
  Result<void> WaitFor(const Event& event) const {
    return Check(cudaStreamWaitEvent(stream_, event.get(), 0), "making a stream wait");
  }
  /// Waits, on the host, for all that the stream holds; asleep, where an event can be had.
  Result<void> Synchronize() const {
    // Where the event fails, too, the stream itself says whether it has ended.
    if (const auto now = Event::Make(); now && now->Record(stream_) && now->Wait()) return {};
    return Check(cudaStreamSynchronize(stream_), "waiting for the GPU");
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace cairn::cuda::internal
