#include "cuda/measure.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <type_traits>
#include <vector>

#include "cuda/backend.h"
#include "cuda/internal/cuda_call.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/kernels.h"
#include "cuda/internal/stream.h"
#include "kv/base/digest.h"

namespace cairn::cuda {
namespace {

using internal::Check;
using internal::DeviceHeap;
using internal::DeviceScope;
using internal::Stream;

constexpr uint64_t kChunkBytes = 4 << 20;

/// An event that measures time, unlike internal::Event.
using TimedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, void (*)(cudaEvent_t)>;

Result<TimedEvent> RecordNow(const Stream& stream) {
  cudaEvent_t event = nullptr;
  CAIRN_TRY(Check(cudaEventCreate(&event), "creating an event"));
  TimedEvent owned(event, [](cudaEvent_t freed) { internal::Ignore(cudaEventDestroy(freed)); });
  CAIRN_TRY(Check(cudaEventRecord(event, stream.get()), "recording an event"));
  return owned;
}

std::string VersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Result<GpuDescription> Describe(int device) {
  GpuDescription description;
  cudaDeviceProp properties{};
  CAIRN_TRY(
      Check(cudaGetDeviceProperties(&properties, device), "querying the properties of the GPU"));
  int driver = 0;
  int runtime = 0;
  CAIRN_TRY(Check(cudaDriverGetVersion(&driver), "querying the version of the driver"));
  CAIRN_TRY(Check(cudaRuntimeGetVersion(&runtime), "querying the version of the runtime"));
  description.name = properties.name;
  description.driver_cuda = VersionText(driver);
  description.runtime_cuda = VersionText(runtime);
  description.memory_bytes = properties.totalGlobalMem;
  description.multiprocessors = properties.multiProcessorCount;
  return description;
}

class Gpu final : public PlainGpu {
 public:
  static Result<std::unique_ptr<PlainGpu>> Open(int device) {
    const DeviceScope scope(device);
    std::unique_ptr<Gpu> gpu(new Gpu(device));
    CAIRN_TRY_ASSIGN(gpu->description_, Describe(device));
    CAIRN_TRY_ASSIGN(gpu->heap_, DeviceHeap::Make(device));
    CAIRN_TRY_ASSIGN(gpu->stream_, Stream::Make());
    return gpu;
  }

  const GpuDescription& description() const override { return description_; }

  Result<double> CopyOut(const std::byte* source, std::span<std::byte> host) override {
    return Copy(host.data(), source, host.size(), cudaMemcpyDeviceToHost);
  }
  Result<double> CopyIn(std::span<const std::byte> host, std::byte* target) override {
    return Copy(target, host.data(), host.size(), cudaMemcpyHostToDevice);
  }

  Result<double> Digest(const std::byte* source, uint64_t length_bytes) override {
    return TimeKernel(source, length_bytes, [&](const internal::DigestLaunch& launch) {
      return internal::LaunchDigest(launch, heap_->multiprocessors(), stream_.get());
    });
  }
  Result<double> Read(const std::byte* source, uint64_t length_bytes) override {
    return TimeKernel(source, length_bytes, [&](const internal::DigestLaunch& launch) {
      return internal::LaunchRead(launch, launch.page_digests, heap_->multiprocessors(),
                                  stream_.get());
    });
  }

 private:
  explicit Gpu(int device) : device_(device) {}

  Result<double> Copy(void* target, const void* source, uint64_t count, cudaMemcpyKind kind) {
    const DeviceScope scope(device_);
    CAIRN_TRY(stream_.Synchronize());
    const auto begin = std::chrono::steady_clock::now();
    CAIRN_TRY(Check(cudaMemcpyAsync(target, source, count, kind, stream_.get()), "copying"));
    CAIRN_TRY(stream_.Synchronize());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Result<double> TimeKernel(const std::byte* source, uint64_t length_bytes,
                            const std::function<cudaError_t(const internal::DigestLaunch&)>& run) {
    const DeviceScope scope(device_);
    CAIRN_TRY_ASSIGN(const internal::DigestLaunch launch, Prepare(source, length_bytes));
    CAIRN_TRY_ASSIGN(const TimedEvent begin, RecordNow(stream_));
    CAIRN_TRY(Check(run(launch), "starting a kernel"));
    CAIRN_TRY_ASSIGN(const TimedEvent end, RecordNow(stream_));
    CAIRN_TRY(stream_.Synchronize());
    float milliseconds = 0;
    CAIRN_TRY(
        Check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "measuring a time"));
    return milliseconds * 1e-3;
  }

  /// Allocates and fills the table of chunks, and allocates the results, on the device.
  Result<internal::DigestLaunch> Prepare(const std::byte* source, uint64_t length_bytes) {
    std::vector<internal::PageJob> jobs;
    uint64_t pages = 0;
    for (uint64_t at = 0; at < length_bytes; at += kChunkBytes) {
      const uint64_t length = std::min(kChunkBytes, length_bytes - at);
      jobs.push_back({.data = reinterpret_cast<const unsigned char*>(source + at),
                      .length_bytes = length,
                      .first_page = pages,
                      .first_page_digest = pages});
      pages += kv::PageCount(length);
    }
    const uint64_t table_bytes = jobs.size() * sizeof(internal::PageJob);
    CAIRN_TRY(heap_->Grow(jobs_, table_bytes));
    CAIRN_TRY(heap_->Grow(page_digests_, pages * sizeof(uint64_t)));
    CAIRN_TRY(heap_->Grow(changed_, pages / 8 + sizeof(uint64_t)));
    CAIRN_TRY(Check(cudaMemcpyAsync(jobs_.data(), jobs.data(), table_bytes, cudaMemcpyHostToDevice,
                                    stream_.get()),
                    "copying a table"));
    CAIRN_TRY(Check(cudaMemsetAsync(changed_.data(), 0, changed_.length_bytes(), stream_.get()),
                    "clearing bits"));
    CAIRN_TRY(stream_.Synchronize());
    return internal::DigestLaunch{.jobs = jobs_.As<internal::PageJob>(),
                                  .job_count = static_cast<uint32_t>(jobs.size()),
                                  .page_count = pages,
                                  .page_digests = page_digests_.As<uint64_t>(),
                                  .changed = changed_.As<uint32_t>()};
  }

  const int device_;
  GpuDescription description_;
  std::shared_ptr<const DeviceHeap> heap_;  // shared with the memory that it has allocated
  core::DeviceMemory jobs_;
  core::DeviceMemory page_digests_;
  core::DeviceMemory changed_;
  Stream stream_;  // after the buffers: it is destroyed first, and its work uses them
};

}  // namespace

Result<std::unique_ptr<PlainGpu>> PlainGpu::Open(int device) {
  CAIRN_TRY_ASSIGN(core::DeviceBackend* const backend, FindBackend());
  CAIRN_TRY(backend->FreeBytes(device));  // fails if there is no such device
  return Gpu::Open(device);
}

}  // namespace cairn::cuda
