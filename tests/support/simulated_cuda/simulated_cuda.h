#pragma once
/// Control and observation of the simulated CUDA runtime: the number and size of devices, which
/// call fails, how much was copied, and what was not released. README.md in this folder states what
/// is simulated and what the simulation cannot show.
///
/// Threads: all functions are safe, except that nothing else may use the simulation during Reset.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace cairn::simulated_cuda {

/// The machine that a test wants.
struct Config {
  int device_count = 1;                       // 0: calls fail with cudaErrorNoDevice
  uint64_t device_memory_bytes = 1ull << 30;  // of each device
  /// If positive, every operation of a stream starts up to this many microseconds late, so that
  /// code that does not wait sees the previous bytes.
  int jitter_us = 0;
  uint64_t jitter_seed = 1;  // delays are the same for the same seed, stream and operation
  bool shuffle_threads =
      false;  // start the threads of a block in an order generated from jitter_seed
};

/// The contents of new device memory, and of freed device memory until it is reused.
inline constexpr unsigned char kFreshByte = 0xA5;
inline constexpr unsigned char kFreedByte = 0xDD;
/// The contents of new pinned memory.
inline constexpr unsigned char kFreshPinnedByte = 0xB6;

/// Restarts the machine: waits for the work of all streams, destroys streams and events, frees all
/// memory, and clears counters and faults. The current device of the calling thread becomes 0.
void Reset(const Config& config = {});

/// The calls since Reset or ResetCounters, without those that were refused.
struct Counters {
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  /// Copies between a device and pageable host memory, which are included above. The caller waits
  /// for them, as in CUDA.
  uint64_t pageable_count = 0;
  uint64_t device_malloc_count = 0;  // cudaMalloc and cudaMallocAsync
  uint64_t host_alloc_count = 0;     // cudaHostAlloc
  uint64_t host_register_count = 0;
  uint64_t device_synchronize_count = 0;
  /// Calls that wait for the complete device although their name does not suggest it: cudaFree,
  /// cudaFreeHost, cudaHostUnregister.
  uint64_t implicit_synchronize_count = 0;
};
Counters GetCounters();
void ResetCounters();

/// The `nth` call from now (1 is the next) of `function` ("cudaMalloc", or "*" for any that can
/// fail) returns `error` and does nothing. One fault per name; a new one replaces it.
void FailCall(std::string_view function, uint64_t nth, cudaError_t error);
/// Returns true if the fault of that name has happened, or none was set.
bool FaultHappened(std::string_view function);
void ClearFaults();

/// Makes all work of `device` do nothing and every call for it return `error`, as after a crashed
/// kernel or a device that fell off the bus, until Reset. Blocked streams continue.
void LoseDevice(int device, cudaError_t error = cudaErrorLaunchFailure);

/// The resources that exist. Compare the value at the end of a test with that at its start.
struct Live {
  uint64_t device_allocation_count = 0, device_bytes = 0;
  uint64_t pinned_allocation_count = 0, pinned_bytes = 0;
  uint64_t registered_count = 0;
  uint64_t stream_count = 0;  // without the default streams
  uint64_t event_count = 0;
  friend bool operator==(const Live&, const Live&) = default;
};
Live GetLive();

/// Read or write device memory from the host without a stream and without counting. For checks of a
/// test while no work is running. They end the process if the range is not within an allocation.
void PeekDevice(void* target, const void* device_source, uint64_t bytes);
void PokeDevice(void* device_target, const void* source, uint64_t bytes);

/// Keeps a stream busy until it is released, like a kernel that spins. The constructor enqueues it.
/// Ownership: the destructor releases the stream.
class StreamBlock {
 public:
  explicit StreamBlock(cudaStream_t stream);
  ~StreamBlock();
  StreamBlock(const StreamBlock&) = delete;
  StreamBlock& operator=(const StreamBlock&) = delete;

  void Release();
  /// Waits until the stream has reached it.
  void WaitUntilReached() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cairn::simulated_cuda
