#include "cuda/internal/device_heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace cairn::cuda::internal {

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const DeviceScope scope(heap_->device());
  Ignore(cudaFreeAsync(data_, heap_->stream_.get()));
}

Result<std::shared_ptr<DeviceHeap>> DeviceHeap::Make(int device) {
  auto heap = std::shared_ptr<DeviceHeap>(new DeviceHeap(device));
  const DeviceScope scope(device);
  CAIRN_TRY(
      Check(cudaDeviceGetAttribute(&heap->multiprocessors_, cudaDevAttrMultiProcessorCount, device),
            "querying the attributes of the GPU"));
  CAIRN_TRY_ASSIGN(heap->stream_, Stream::Make());
  return heap;
}

Result<uint64_t> DeviceHeap::FreeBytes() const {
  const DeviceScope scope(device_);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CAIRN_TRY(Check(cudaMemGetInfo(&free_bytes, &total_bytes), "querying the free GPU memory"));
  return free_bytes;
}

Result<DeviceBuffer> DeviceHeap::Allocate(uint64_t length_bytes) const {
  DeviceBuffer buffer;
  if (length_bytes == 0) return buffer;
  const DeviceScope scope(device_);
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, length_bytes, stream_.get());
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    const auto free_bytes = FreeBytes();
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("GPU {} has no {} bytes left ({} bytes are free); free memory, or "
                            "configure Cairn to use less",
                            device_, length_bytes, free_bytes.value_or(0)));
  }
  CAIRN_TRY(Check(status, "allocating GPU memory"));
  buffer.heap_ = shared_from_this();
  buffer.data_ = static_cast<unsigned char*>(memory);
  buffer.length_bytes_ = length_bytes;
  // The stream contains only allocations, so this is fast; other streams may then use the memory.
  CAIRN_TRY(stream_.Synchronize());
  return buffer;
}

Result<void> DeviceHeap::Grow(DeviceBuffer& buffer, uint64_t length_bytes) const {
  if (buffer.length_bytes() >= length_bytes) return {};
  buffer = {};  // first, because there may not be enough memory for both
  CAIRN_TRY_ASSIGN(buffer, Allocate(length_bytes));
  return {};
}

Result<void> PinnedBuffer::Grow(uint64_t length_bytes) {
  if (length_bytes_ >= length_bytes) return {};
  void* memory = nullptr;
  const uint64_t rounded = std::bit_ceil(std::max<uint64_t>(length_bytes, 64 << 10));
  CAIRN_TRY(Check(cudaHostAlloc(&memory, rounded, cudaHostAllocPortable),
                  "allocating page-locked host memory"));
  if (data_ != nullptr) outgrown_.push_back(data_);
  data_ = static_cast<std::byte*>(memory);
  length_bytes_ = rounded;
  return {};
}

}  // namespace cairn::cuda::internal
