#pragma once
/// The state behind the simulated API: devices, streams, events, faults and counters, and the frame
/// that every API function runs in.

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
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
  StreamPtr legacy_stream;  // made when it is first used
  std::set<int> peers;      // that kernels here may touch
};

struct EventState {
  int device = 0;
  unsigned flags = 0;
  CompletionPtr recorded;  // null: never recorded
};

/// Threads: members say what the lock guards; functions take it unless they say otherwise.
class Runtime {
 public:
  static Runtime& Get();

  std::mutex& mutex() { return mutex_; }

  // What follows requires the lock, to the next "private".
  Config config;
  std::unique_ptr<MemoryRegistry> memory;
  std::vector<Device> devices;
  std::map<cudaStream_t, StreamPtr> streams;
  std::map<cudaEvent_t, EventState> events;
  Counters counters;
  std::map<const void*, int> dynamic_shared_limits;               // of kernels, beyond the usual
  std::map<const StreamQueue*, uint64_t> freed_later_bytes;       // by cudaFreeAsync not yet run
  std::vector<std::pair<int, std::weak_ptr<Completion>>> blocks;  // by device

  /// The queue of a handle, the default stream's of the current device for 0; null if there is
  /// none.
  StreamPtr FindStream(cudaStream_t stream);
  StreamPtr LegacyStream(int device);
  StreamPtr NewStream(int device, unsigned flags, int priority);
  /// Puts `run` into the stream's queue, behind what CUDA's default-stream rules and `after` say.
  /// `run` is left out once the device is lost.
  CompletionPtr Enqueue(const StreamPtr& stream, std::function<void()> run,
                        std::vector<CompletionPtr> after = {});
  /// The ends of all work of a device, or of what the default stream waits for (`blocking_only`).
  std::vector<CompletionPtr> Tails(int device, bool blocking_only);
  template <class Handle>
  Handle NewHandle() {
    return reinterpret_cast<Handle>(next_handle_ += 64);
  }

  void Reset(const Config& new_config);
  cudaError_t StickyError(int device);
  /// The first error stays.
  void SetStickyError(int device, cudaError_t error);

  void CountCall(std::string_view function);
  uint64_t CallCount(std::string_view function);
  void SetFault(std::string_view function, uint64_t nth, cudaError_t error);
  bool FaultHappened(std::string_view function);
  void ClearFaults();
  /// The fault that this call meets, or success.
  cudaError_t TakeFault(std::string_view function);
  void ResetCounters();

 private:
  struct Fault {
    uint64_t calls_left = 0;  // 0: has happened
    cudaError_t error = cudaSuccess;
  };

  Runtime();

  std::mutex mutex_;
  // Never used again, so that a destroyed stream or event is known as such.
  uintptr_t next_handle_ = 0x5c0000000000;
  uint64_t stream_number_ = 0;
  std::map<std::string, uint64_t, std::less<>> call_counts_;
  std::map<std::string, Fault, std::less<>> faults_;
};

/// The current device of this thread.
int CurrentDevice();
void SetCurrentDevice(int device);
/// The error that cudaGetLastError returns.
cudaError_t& LastError();
/// True in a function of cudaLaunchHostFunc, which may not call CUDA.
bool& InHostFunction();

enum class Needs {
  kNothing,
  kDevice,
  kGivesBack,  // works for a lost device too, though it says that it is lost
};

/// What precedes and follows each API call: faults, lost devices, the last error.
template <class Body>
cudaError_t Call(std::string_view function, Needs needs, Body&& body) {
  Runtime& runtime = Runtime::Get();
  const auto decide = [&] {
    if (InHostFunction()) return cudaErrorNotPermitted;
    const std::lock_guard lock(runtime.mutex());
    runtime.CountCall(function);
    if (const cudaError_t fault = runtime.TakeFault(function); fault != cudaSuccess) return fault;
    if (needs == Needs::kNothing) return cudaSuccess;
    if (runtime.devices.empty()) return cudaErrorNoDevice;
    if (needs == Needs::kGivesBack) return cudaSuccess;
    return runtime.devices[CurrentDevice()].sticky_error;
  };
  cudaError_t status = decide();
  if (status == cudaSuccess) {
    status = body();
    if (status == cudaSuccess && needs == Needs::kGivesBack) {
      status = runtime.StickyError(CurrentDevice());
    }
  }
  if (status != cudaSuccess) LastError() = status;
  return status;
}

/// Waits for all of them, without the lock.
void WaitForAll(const std::vector<CompletionPtr>& completions);

}  // namespace cairn::simulated_cuda
