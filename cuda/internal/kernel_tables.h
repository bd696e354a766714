#pragma once
/// Runs a kernel over a table of jobs, and returns its table of results.

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "cuda/internal/cuda_call.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/stream.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// The memory of both tables, on the device and page-locked on the host, for `kMaxJobs` jobs. It is
/// allocated by the first Run and kept until the destructor.
///
/// Threads: one at a time. The device of the heap must be current in every call.
template <typename Job, typename Output, size_t kMaxJobs>
class KernelTables {
 public:
  /// Copies `jobs` to the device, calls `launch(jobs on the device, results on the device)`, and
  /// waits for the results, all on `stream`. On an error nothing of the call still runs.
  /// kResourceExhausted: memory; kUnavailable: the device failed; `what` names the work.
  template <typename Launch>
  Result<std::vector<Output>> Run(const DeviceHeap& heap, const Stream& stream,
                                  std::span<const Job> jobs, const char* what,
                                  const Launch& launch) {
    CAIRN_CHECK(jobs.size() <= kMaxJobs);
    if (jobs.empty()) return std::vector<Output>();
    auto outputs = Send(heap, stream, jobs, what, launch);
    if (!outputs) (void)stream.Synchronize();  // the kernel must end before its memory is freed
    return outputs;
  }

 private:
  template <typename Launch>
  Result<std::vector<Output>> Send(const DeviceHeap& heap, const Stream& stream,
                                   std::span<const Job> jobs, const char* what,
                                   const Launch& launch) {
    CAIRN_TRY(heap.Grow(jobs_, kMaxJobs * sizeof(Job)));
    CAIRN_TRY(heap.Grow(outputs_, kMaxJobs * sizeof(Output)));
    CAIRN_TRY(host_jobs_.Grow(kMaxJobs * sizeof(Job)));
    CAIRN_TRY(host_outputs_.Grow(kMaxJobs * sizeof(Output)));
    std::memcpy(host_jobs_.data(), jobs.data(), jobs.size_bytes());
    CAIRN_TRY(Check(cudaMemcpyAsync(jobs_.data(), host_jobs_.data(), jobs.size_bytes(),
                                    cudaMemcpyHostToDevice, stream.get()),
                    what));
    CAIRN_TRY(Check(launch(jobs_.As<Job>(), outputs_.As<Output>()), what));
    CAIRN_TRY(
        Check(cudaMemcpyAsync(host_outputs_.data(), outputs_.data(), jobs.size() * sizeof(Output),
                              cudaMemcpyDeviceToHost, stream.get()),
              what));
    CAIRN_TRY_ASSIGN(const Event done, Event::Make());
    CAIRN_TRY(done.Record(stream.get()));
    CAIRN_TRY(done.Wait());
    const auto* const outputs = host_outputs_.As<Output>();
    return std::vector<Output>(outputs, outputs + jobs.size());
  }

  DeviceBuffer jobs_;
  DeviceBuffer outputs_;
  PinnedBuffer host_jobs_;
  PinnedBuffer host_outputs_;
};

}  // namespace cairn::cuda::internal
