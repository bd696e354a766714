#include "core/device/device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>

#include "kv/base/mapping.h"

namespace cairn::core {
namespace {

constexpr uint64_t kPageBytes = 4096;

std::atomic<DeviceBackendFinder> registered{nullptr};

}  // namespace

void SetDeviceBackend(DeviceBackendFinder find) { registered = find; }

Result<DeviceBackend*> FindDeviceBackend() {
  const DeviceBackendFinder find = registered;
  if (find == nullptr) {
    return Fail(ErrorCode::kUnimplemented,
                "this build of Cairn has no CUDA layer; copy tensors to host memory first, or "
                "build with a CUDA 13 toolkit");
  }
  return find();
}

HostMemory::~HostMemory() {
  if (pinned_by_ != nullptr) pinned_by_->Unpin(bytes());
  if (data_ != nullptr) munmap(data_, length_bytes_);
}

Result<HostMemory> HostMemory::Allocate(uint64_t length_bytes, const HostMemoryOptions& options) {
  DeviceBackend* backend = nullptr;
  if (options.pinned) {
    auto found = FindDeviceBackend();
    if (!found) {
      return Fail(found.error().code,
                  fmt::format("pinned host memory needs a device: {}", found.error().message));
    }
    backend = *found;
  }
  HostMemory memory;
  if (length_bytes == 0) return memory;
  memory.data_ = kv::MapAligned(length_bytes, kPageBytes);
  if (memory.data_ == nullptr) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("cannot allocate {} bytes of host memory", length_bytes));
  }
  // Reduces page faults. If the system has no huge pages, small ones work too.
  if (length_bytes >= kv::kHugePageBytes) madvise(memory.data_, length_bytes, MADV_HUGEPAGE);
  memory.length_bytes_ = length_bytes;
  if (backend == nullptr) return memory;
  CAIRN_TRY(backend->Pin(memory.bytes()));
  memory.pinned_by_ = backend;
  return memory;
}

}  // namespace cairn::core
