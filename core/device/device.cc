// Maps anonymous pages, or memfds whose size is sealed, and pins them on request.

#include "core/device/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace cairn::core {

namespace {

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

namespace {

constexpr uint64_t kHugePageBytes = 2 << 20;
// Reading a region that has shrunk raises SIGBUS, so neither side may resize it.
constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

Error NoMemory(uint64_t length_bytes, int error_number) {
  return {.code = ErrorCode::kResourceExhausted,
          .message = fmt::format("cannot allocate {} bytes of host memory: {}", length_bytes,
                                 std::strerror(error_number))};
}

Result<std::byte*> MapPages(uint64_t length_bytes, int descriptor) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* pages = mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (pages == MAP_FAILED) return Fail(NoMemory(length_bytes, errno));
  // Reduces page faults. If the system has no huge pages, small ones work too.
  if (length_bytes >= kHugePageBytes) madvise(pages, length_bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(pages);
}

}  // namespace

HostMemory::~HostMemory() {
  if (pinned_by_ != nullptr) pinned_by_->Unpin(bytes());
  if (data_ != nullptr) munmap(data_, length_bytes_);
  if (descriptor_ >= 0) close(descriptor_);
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
  if (options.shared) {
    memory.descriptor_ = memfd_create("cairn-host-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory.descriptor_ < 0) return Fail(NoMemory(length_bytes, errno));
    if (ftruncate(memory.descriptor_, static_cast<off_t>(length_bytes)) != 0 ||
        fcntl(memory.descriptor_, F_ADD_SEALS, kFixedSize) != 0) {
      return Fail(NoMemory(length_bytes, errno));
    }
  }
  if (length_bytes == 0) return memory;
  CAIRN_TRY_ASSIGN(memory.data_, MapPages(length_bytes, memory.descriptor_));
  memory.length_bytes_ = length_bytes;
  if (backend == nullptr) return memory;
  CAIRN_TRY(backend->Pin(memory.bytes()));
  memory.pinned_by_ = backend;
  return memory;
}

Result<HostMemory> HostMemory::Map(int descriptor, uint64_t length_bytes) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) {
    return Fail(
        SystemError(errno, fmt::format("mapping shared memory, descriptor {}", descriptor)));
  }
  if (static_cast<uint64_t>(status.st_size) != length_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("shared memory of {} bytes was expected, that of the descriptor has {}",
                            length_bytes, status.st_size));
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kFixedSize) != kFixedSize) {
    return Fail(ErrorCode::kInvalidArgument,
                "the memory of the descriptor may still change its size; no HostMemory created it");
  }
  HostMemory memory;
  memory.descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (memory.descriptor_ < 0) return Fail(SystemError(errno, "duplicating a descriptor"));
  if (length_bytes == 0) return memory;
  CAIRN_TRY_ASSIGN(memory.data_, MapPages(length_bytes, memory.descriptor_));
  memory.length_bytes_ = length_bytes;
  return memory;
}

}  // namespace cairn::core
