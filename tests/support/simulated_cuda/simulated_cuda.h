#pragma once
/// Control and observation of the simulated CUDA runtime: how many devices there are and how large,
/// which call fails when, how much was copied, what was not given back. README.md beside this file
/// says what is simulated and what it cannot show.
///
/// Threads: every function may be called from any thread, except that nothing else may be running
/// in the simulation during Reset.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace cairn::simulated_cuda {

/// The machine that a test wants.
struct Config {
  int device_count = 1;                       // 0: calls fail with cudaErrorNoDevice
  uint64_t device_memory_bytes = 1ull << 30;  // of each device
  uint64_t pinned_limit_bytes = UINT64_MAX;   // of cudaHostAlloc and cudaHostRegister together
  /// Above 0: every operation of a stream starts up to this many microseconds late, so that what
  /// forgets to wait sees the bytes that were there before.
  int jitter_us = 0;
  uint64_t jitter_seed = 1;      // delays are the same for the same seed, stream and operation
  bool shuffle_threads = false;  // start a block's threads in an order drawn from jitter_seed
  int compute_major = 9;
  int compute_minor = 0;
  int multiprocessor_count = 4;  // few: kernels that fill the device launch few blocks
  bool can_access_peer = true;
};

/// What fresh device memory is filled with, and what freed memory is, until it is used again.
inline constexpr unsigned char kFreshByte = 0xA5;
inline constexpr unsigned char kFreedByte = 0xDD;
/// What fresh pinned memory is filled with.
inline constexpr unsigned char kFreshPinnedByte = 0xB6;

/// Forgets everything and starts the machine anew: waits for what the streams still hold, destroys
/// streams and events, frees all memory, clears counters and faults. The calling thread's current
/// device becomes 0.
void Reset(const Config& config = {});

/// What has been asked for since Reset or ResetCounters. Refused calls do not count, except in
/// CallCount.
struct Counters {
  uint64_t h2d_count = 0, h2d_bytes = 0;
  uint64_t d2h_count = 0, d2h_bytes = 0;
  uint64_t d2d_count = 0, d2d_bytes = 0;  // between devices too
  uint64_t h2h_count = 0, h2h_bytes = 0;
  /// Copies between a device and pageable host memory, part of the above. They keep the caller
  /// waiting, as CUDA's do.
  uint64_t pageable_count = 0, pageable_bytes = 0;
  uint64_t memset_count = 0, memset_bytes = 0;
  uint64_t kernel_count = 0;
  uint64_t device_malloc_count = 0;  // cudaMalloc and cudaMallocAsync
  uint64_t host_alloc_count = 0;     // cudaHostAlloc and cudaMallocHost
  uint64_t host_register_count = 0;
  uint64_t device_synchronize_count = 0;
  /// Calls that wait for the whole device though their name does not say so: cudaFree,
  /// cudaFreeHost, cudaHostUnregister.
  uint64_t implicit_synchronize_count = 0;
  uint64_t stream_synchronize_count = 0;
  uint64_t event_synchronize_count = 0;
  uint64_t host_function_count = 0;
};
Counters GetCounters();
void ResetCounters();
/// How often a function of the CUDA API was called, refused calls included, since Reset or
/// ResetCounters. "*" for all of them.
uint64_t CallCount(std::string_view function);

/// The `nth` call from now (1 is the next) of `function` ("cudaMalloc", or "*" for any that can
/// fail) returns `error` and does nothing. One fault per name; a new one replaces it.
void FailCall(std::string_view function, uint64_t nth, cudaError_t error);
/// True if the fault of that name has happened (or none was set).
bool FaultHappened(std::string_view function);
void ClearFaults();

/// From now on what runs on `device` does nothing, and every call for it returns `error`, as after
/// a crashed kernel or a device that fell off the bus. Only Reset mends it. Blocked streams go on.
void LoseDevice(int device, cudaError_t error = cudaErrorLaunchFailure);

/// What is alive now: compare at a test's end with its start.
struct Live {
  uint64_t device_allocation_count = 0, device_bytes = 0;
  uint64_t pinned_allocation_count = 0, pinned_bytes = 0;
  uint64_t registered_count = 0;
  uint64_t stream_count = 0;  // without the default streams
  uint64_t event_count = 0;
  friend bool operator==(const Live&, const Live&) = default;
};
Live GetLive();

/// Reads or writes device memory from the host behind the simulation's back: no stream, no counter.
/// For what a test looks at, when no work is under way. Ends the process if the range is not within
/// an allocation.
void PeekDevice(void* target, const void* device_source, uint64_t bytes);
void PokeDevice(void* device_target, const void* source, uint64_t bytes);

/// Keeps a stream busy until it is released: the kernel that spins. Enqueued like any work.
/// Ownership: releases at its end.
class StreamBlock {
 public:
  explicit StreamBlock(cudaStream_t stream);
  ~StreamBlock();
  StreamBlock(const StreamBlock&) = delete;
  StreamBlock& operator=(const StreamBlock&) = delete;

  void Release();
  /// Waits until the stream has come to it.
  void WaitUntilReached() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cairn::simulated_cuda
