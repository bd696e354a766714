// Streams and events of the simulated CUDA runtime.
#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>
#include <vector>

#include "tests/support/simulated_cuda/runtime.h"

using namespace cairn::simulated_cuda;  // NOLINT(google-build-using-namespace): C functions below

namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

// Priorities have no effect.
cudaError_t CreateStream(cudaStream_t* stream, unsigned flags) {
  if (stream == nullptr || (flags & ~cudaStreamNonBlocking) != 0) return cudaErrorInvalidValue;
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  *stream = runtime.NewHandle<cudaStream_t>();
  runtime.streams.emplace(*stream, runtime.NewStream(CurrentDevice(), flags));
  return cudaSuccess;
}

// Finds what a wait for the stream waits for; for the default stream, also what that waits for.
cudaError_t Find(cudaStream_t stream, std::vector<CompletionPtr>& tails, int& device) {
  Runtime& runtime = Runtime::Get();
  const StreamPtr queue = runtime.FindStream(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  device = queue->options().device;
  if (queue == runtime.devices[device].legacy_stream) {
    tails = runtime.Tails(device, true);
  } else {
    tails = {queue->tail()};
  }
  return cudaSuccess;
}

cudaError_t CreateEvent(cudaEvent_t* event, unsigned flags) {
  constexpr unsigned kKnown = cudaEventBlockingSync | cudaEventDisableTiming;
  if (event == nullptr || (flags & ~kKnown) != 0) return cudaErrorInvalidValue;
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  *event = runtime.NewHandle<cudaEvent_t>();
  runtime.events[*event] = {CurrentDevice(), flags, nullptr};
  return cudaSuccess;
}

// Finds the completion that was recorded last, if there is one.
cudaError_t Find(cudaEvent_t event, std::vector<CompletionPtr>& recorded, int& device) {
  Runtime& runtime = Runtime::Get();
  const auto found = runtime.events.find(event);
  if (found == runtime.events.end()) return cudaErrorInvalidResourceHandle;
  if (found->second.recorded) recorded = {found->second.recorded};
  device = found->second.device;
  return cudaSuccess;
}

// Waits for the work of a stream or an event, or looks whether it is done.
template <class Handle>
cudaError_t Synchronize(Handle handle, bool wait) {
  Runtime& runtime = Runtime::Get();
  std::vector<CompletionPtr> work;
  int device = 0;
  {
    const std::lock_guard lock(runtime.mutex());
    const cudaError_t status = Find(handle, work, device);
    if (status != cudaSuccess) return status;
  }
  if (wait) WaitForAll(work);
  for (const CompletionPtr& one : work) {
    if (!one->Finished()) return cudaErrorNotReady;
  }
  return runtime.StickyError(device);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return Call("cudaStreamCreateWithFlags", Needs::kDevice,
              [&] { return CreateStream(stream, flags); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return Call("cudaStreamCreateWithPriority", Needs::kDevice,
              [&] { return CreateStream(stream, flags); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Call("cudaDeviceGetStreamPriorityRange", Needs::kDevice, [&] {
    if (least != nullptr) *least = kLeastPriority;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}

// Work that the stream still contains continues.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return LockedCall("cudaStreamDestroy", Needs::kRelease, [&](Runtime& runtime) {
    const auto found = runtime.streams.find(stream);
    if (found == runtime.streams.end()) return cudaErrorInvalidResourceHandle;
    found->second->Close();
    runtime.streams.erase(found);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call("cudaStreamSynchronize", Needs::kDevice, [&] { return Synchronize(stream, true); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Call("cudaStreamQuery", Needs::kDevice, [&] { return Synchronize(stream, false); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return StreamCall("cudaStreamWaitEvent", Needs::kDevice, stream, [&](auto& runtime, auto& queue) {
    if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
    std::vector<CompletionPtr> recorded;
    int device = 0;
    const cudaError_t status = Find(event, recorded, device);
    if (status != cudaSuccess) return status;
    if (!recorded.empty()) runtime.Enqueue(queue, nullptr, recorded);
    return cudaSuccess;
  });
}

// Work that is enqueued on a capturing stream runs, unlike with CUDA: tests enqueue none.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return LockedCall("cudaStreamBeginCapture", Needs::kDevice, [&](Runtime& runtime) {
    if (mode != cudaStreamCaptureModeGlobal) return cudaErrorNotSupported;
    if (!runtime.streams.contains(stream)) return cudaErrorStreamCaptureUnsupported;
    runtime.captures[stream] = true;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return LockedCall("cudaStreamEndCapture", Needs::kDevice, [&](Runtime& runtime) {
    const auto capture = runtime.captures.find(stream);
    if (capture == runtime.captures.end()) return cudaErrorIllegalState;
    const bool is_valid = capture->second;
    runtime.captures.erase(capture);
    *graph = is_valid ? runtime.NewHandle<cudaGraph_t>() : nullptr;
    return is_valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return Call("cudaGraphDestroy", Needs::kNothing, [] { return cudaSuccess; });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return LockedCall("cudaStreamIsCapturing", Needs::kDevice, [&](Runtime& runtime) {
    if (!runtime.FindStream(stream)) return cudaErrorInvalidResourceHandle;
    *status = runtime.captures.contains(stream) ? cudaStreamCaptureStatusActive
                                                : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return Call("cudaThreadExchangeStreamCaptureMode", Needs::kNothing, [&] {
    std::swap(CaptureMode(), *mode);
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return StreamCall("cudaLaunchHostFunc", Needs::kDevice, stream, [&](auto& runtime, auto& queue) {
    if (function == nullptr) return cudaErrorInvalidValue;
    runtime.Enqueue(queue, [function, data] {
      InHostFunction() = true;
      function(data);
      InHostFunction() = false;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return Call("cudaEventCreate", Needs::kDevice,
              [&] { return CreateEvent(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return Call("cudaEventCreateWithFlags", Needs::kDevice,
              [&] { return CreateEvent(event, flags); });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return LockedCall("cudaEventRecord", Needs::kDevice, [&](Runtime& runtime) {
    const StreamPtr queue = runtime.FindStream(stream);
    const auto found = runtime.events.find(event);
    if (!queue || found == runtime.events.end()) return cudaErrorInvalidResourceHandle;
    if (found->second.device != queue->options().device) return cudaErrorInvalidResourceHandle;
    found->second.recorded = runtime.Enqueue(queue, nullptr);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call("cudaEventQuery", Needs::kDevice, [&] { return Synchronize(event, false); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call("cudaEventSynchronize", Needs::kDevice, [&] { return Synchronize(event, true); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return LockedCall("cudaEventDestroy", Needs::kRelease, [&](Runtime& runtime) {
    const bool was_there = runtime.events.erase(event) > 0;
    return was_there ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return LockedCall("cudaEventElapsedTime", Needs::kDevice, [&](Runtime& runtime) {
    std::chrono::steady_clock::time_point times[2];
    cudaEvent_t const both[2] = {begin, end};
    for (int i = 0; i < 2; ++i) {
      const auto found = runtime.events.find(both[i]);
      if (found == runtime.events.end() || !found->second.recorded ||
          (found->second.flags & cudaEventDisableTiming) != 0) {
        return cudaErrorInvalidResourceHandle;
      }
      if (!found->second.recorded->Finished()) return cudaErrorNotReady;
      times[i] = found->second.recorded->finished_at();
    }
    *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
    return cudaSuccess;
  });
}

}  // extern "C"
