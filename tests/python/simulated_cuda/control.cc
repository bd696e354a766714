// The controls of the simulated CUDA runtime as C functions, for the Python tests
// (device_memory.py).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tests/support/simulated_cuda/simulated_cuda.h"

#ifdef CAIRN_SIMULATED_NCCL
#include "tests/support/simulated_nccl/simulated_nccl.h"
#endif

namespace simulation = cairn::simulated_cuda;

extern "C" {

void SimulatedReset(int device_count, uint64_t device_memory_bytes, int jitter_us) {
  simulation::Reset({.device_count = device_count,
                     .device_memory_bytes = device_memory_bytes,
                     .jitter_us = jitter_us});
}

void* SimulatedAllocate(int device, uint64_t bytes) {
  int before = 0;
  void* memory = nullptr;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) memory = nullptr;
  (void)cudaSetDevice(before);
  return memory;
}
void SimulatedFree(void* memory) { (void)cudaFree(memory); }

void SimulatedPeek(void* target, const void* device_source, uint64_t bytes) {
  simulation::PeekDevice(target, device_source, bytes);
}
void SimulatedPoke(void* device_target, const void* source, uint64_t bytes) {
  simulation::PokeDevice(device_target, source, bytes);
}

uint64_t SimulatedBytesToHost() { return simulation::GetCounters().d2h_bytes; }
uint64_t SimulatedBytesToDevice() { return simulation::GetCounters().h2d_bytes; }
uint64_t SimulatedPageableCopies() { return simulation::GetCounters().pageable_count; }
uint64_t SimulatedDeviceSynchronizations() {
  return simulation::GetCounters().device_synchronize_count;
}
void SimulatedResetCounters() { simulation::ResetCounters(); }
uint64_t SimulatedRegistered() { return simulation::GetLive().registered_count; }

/// Makes the next allocation of device memory by Cairn fail. Reset by SimulatedClearFaults.
void SimulatedFailAllocation() {
  simulation::FailCall("cudaMallocAsync", 1, cudaErrorMemoryAllocation);
}
/// Makes the nth call from now of a function of the runtime fail. Reset by SimulatedClearFaults.
void SimulatedFailCall(const char* function, uint64_t nth) {
  simulation::FailCall(function, nth, cudaErrorUnknown);
}
void SimulatedClearFaults() { simulation::ClearFaults(); }

void* SimulatedStream(int device) {
  cudaStream_t stream = nullptr;
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) stream = nullptr;
  (void)cudaSetDevice(before);
  return stream;
}
/// Enqueues a copy. `source` must not change until the stream has executed it.
int SimulatedCopyBehind(void* device_target, const void* device_source, uint64_t bytes,
                        void* stream) {
  return cudaMemcpyAsync(device_target, device_source, bytes, cudaMemcpyDeviceToDevice,
                         static_cast<cudaStream_t>(stream));
}
int SimulatedSynchronize(void* stream) {
  return cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
}

/// Keeps a stream busy until SimulatedUnblock.
void* SimulatedBlock(void* stream) {
  return new simulation::StreamBlock(static_cast<cudaStream_t>(stream));
}
/// Keeps the default stream of a device busy until SimulatedUnblock. cudaFree waits for it.
void* SimulatedBlockDefault(int device) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return nullptr;
  void* const block = SimulatedBlock(nullptr);
  (void)cudaSetDevice(before);
  return block;
}
void SimulatedUnblock(void* block) { delete static_cast<simulation::StreamBlock*>(block); }

#ifdef CAIRN_SIMULATED_NCCL
/// Returns the path of the library; empty if it was not built.
const char* SimulatedNcclPath() { return CAIRN_SIMULATED_NCCL; }
/// Makes NCCL refuse ranks with the same device, as the real library does.
void SimulatedNcclReset() { cairn::simulated_nccl::Reset({.refuses_shared_devices = true}); }
/// Returns the bytes that all ranks have passed to sends and broadcasts.
uint64_t SimulatedNcclBytes() {
  const auto counters = cairn::simulated_nccl::GetCounters();
  return counters.send_bytes + counters.collective_bytes;
}
uint64_t SimulatedNcclCommunicators() { return cairn::simulated_nccl::LiveCommunicatorCount(); }
/// Makes the next call of that function fail.
void SimulatedNcclFailCall(const char* function) {
  cairn::simulated_nccl::FailCall(function, 1, ncclSystemError);
}
#else
const char* SimulatedNcclPath() { return ""; }
void SimulatedNcclReset() {}
uint64_t SimulatedNcclBytes() { return 0; }
uint64_t SimulatedNcclCommunicators() { return 0; }
void SimulatedNcclFailCall(const char*) {}
#endif

}  // extern "C"
