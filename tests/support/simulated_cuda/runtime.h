#pragma once
/// The state behind the simulated API: devices, streams, events, faults and counters, and the frame
/// that every API function runs in.

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/simulated_cuda/completion.h"
#include "tests/support/simulated_cuda/memory_registry.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"
#include "tests/support/simulated_cuda/stream_queue.h"

namespace cairn::simulated_cuda {

using StreamPtr = std::shared_ptr<StreamQueue>;

struct Device {
  cudaError_t sticky_error = cudaSuccess;
  StreamPtr legacy_stream;  // created at its first use
};

struct EventState {
  int device = 0;
  unsigned flags = 0;
  CompletionPtr recorded;  // null: never recorded
};

/// Threads: comments state which members require the lock; all other functions lock it themselves.
class Runtime {
 public:
  static Runtime& Get();

  std::mutex& mutex() { return mutex_; }

  // The following members require the lock, up to the next "private".
  Config config;
  std::unique_ptr<MemoryRegistry> memory;
  std::vector<Device> devices;
  std::map<cudaStream_t, StreamPtr> streams;
  std::map<cudaEvent_t, EventState> events;
  Counters counters;
  uint64_t kernel_count = 0;
  std::map<const StreamQueue*, uint64_t> freed_later_bytes;  // cudaFreeAsync that has not run yet
  std::vector<std::pair<int, std::weak_ptr<Completion>>> blocks;  // by device
  std::map<cudaStream_t, bool> captures;  // streams that capture a graph; false: it was invalidated

  /// Returns the queue of a handle; for 0 that of the default stream of the current device; null if
  /// there is none.
  StreamPtr FindStream(cudaStream_t stream);
  StreamPtr LegacyStream(int device);
  StreamPtr NewStream(int device, unsigned flags);
  /// Enqueues `run` on the stream. It runs after `after` and after what CUDA's rules for the
  /// default stream require. It is skipped if the device is lost.
  CompletionPtr Enqueue(const StreamPtr& stream, std::function<void()> run,
                        std::vector<CompletionPtr> after = {});
  /// Returns the completions of all work of a device, or only of the streams that the default
  /// stream waits for (`blocking_only`).
  std::vector<CompletionPtr> Tails(int device, bool blocking_only);
  template <class Handle>
  Handle NewHandle() {
    return reinterpret_cast<Handle>(next_handle_ += 64);
  }

  void Reset(const Config& new_config);
  cudaError_t StickyError(int device);
  /// Only the first error is kept.
  void SetStickyError(int device, cudaError_t error);

  void SetFault(std::string_view function, uint64_t nth, cudaError_t error);
  bool FaultHappened(std::string_view function);
  void ClearFaults();
  /// Refuses a call that must not happen during a capture, and invalidates all captures.
  cudaError_t CheckCaptures(std::string_view function);
  /// Returns the fault of this call, or success.
  cudaError_t TakeFault(std::string_view function);

 private:
  struct Fault {
    uint64_t calls_left = 0;  // 0: it has happened
    cudaError_t error = cudaSuccess;
  };

  Runtime();

  std::mutex mutex_;
  // Handles are never reused, so that a destroyed stream or event is recognized.
  uintptr_t next_handle_ = 0x5c0000000000;
  uint64_t stream_number_ = 0;
  std::map<std::string, Fault, std::less<>> faults_;
};

/// The current device of the calling thread.
int CurrentDevice();
void SetCurrentDevice(int device);
/// The error that cudaGetLastError returns.
cudaError_t& LastError();
/// True during a function of cudaLaunchHostFunc, which must not call CUDA.
bool& InHostFunction();
/// Which calls of this thread a capture forbids.
cudaStreamCaptureMode& CaptureMode();

enum class Needs {
  kNothing,
  kDevice,
  kRelease,  // also works for a lost device, but returns its error
};

/// Executes an API call, with the checks that are common to all: faults, lost devices, the last
/// error.
template <class Body>
cudaError_t Call(std::string_view function, Needs needs, Body&& body) {
  Runtime& runtime = Runtime::Get();
  const auto decide = [&] {
    if (InHostFunction()) return cudaErrorNotPermitted;
    const std::lock_guard lock(runtime.mutex());
    if (const cudaError_t fault = runtime.TakeFault(function); fault != cudaSuccess) return fault;
    if (needs == Needs::kNothing) return cudaSuccess;
    if (runtime.devices.empty()) return cudaErrorNoDevice;
    const cudaError_t unsafe = runtime.CheckCaptures(function);
    if (unsafe != cudaSuccess || needs == Needs::kRelease) return unsafe;
    return runtime.devices[CurrentDevice()].sticky_error;
  };
  cudaError_t status = decide();
  if (status == cudaSuccess) {
    status = body();
    if (status == cudaSuccess && needs == Needs::kRelease) {
      status = runtime.StickyError(CurrentDevice());
    }
  }
  if (status != cudaSuccess) LastError() = status;
  return status;
}

/// `Call`, with `body(runtime)` under the lock.
template <class Body>
cudaError_t LockedCall(std::string_view function, Needs needs, const Body& body) {
  return Call(function, needs, [&] {
    Runtime& runtime = Runtime::Get();
    const std::lock_guard lock(runtime.mutex());
    return body(runtime);
  });
}

/// `LockedCall`, with `body(runtime, queue)` of a stream that must exist.
template <class Body>
cudaError_t StreamCall(std::string_view function, Needs needs, cudaStream_t stream,
                       const Body& body) {
  return LockedCall(function, needs, [&](Runtime& runtime) {
    const StreamPtr queue = runtime.FindStream(stream);
    return queue ? body(runtime, queue) : cudaErrorInvalidResourceHandle;
  });
}

/// Waits for all completions. Requires that the lock is not held.
void WaitForAll(const std::vector<CompletionPtr>& completions);

}  // namespace cairn::simulated_cuda
