// The devices of this process, each with its heap and its idle queues.

#include "cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/internal/cuda_call.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/device_queue.h"
#include "kv/base/mutex.h"

namespace cairn::cuda {
namespace {

using internal::Check;
using internal::DeviceHeap;

class Backend final : public core::DeviceBackend {
 public:
  explicit Backend(int device_count)
      : device_count_(static_cast<size_t>(device_count)), devices_(device_count_) {}

  Result<std::shared_ptr<core::DeviceQueue>> OpenQueue(int device) override {
    CAIRN_TRY_ASSIGN(const auto heap, HeapOf(device));
    std::unique_ptr<core::DeviceQueue> queue;
    {
      const MutexLock lock(mutex_);
      auto& idle = devices_[static_cast<size_t>(device)].idle;
      if (!idle.empty()) {
        queue = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (queue == nullptr) {
      CAIRN_TRY_ASSIGN(queue, internal::MakeQueue(heap));
    }
    // Keeps the queue, and so its buffers, for the next user.
    return std::shared_ptr<core::DeviceQueue>(queue.release(), [this](core::DeviceQueue* used) {
      used->Reset();
      const MutexLock lock(mutex_);
      devices_[static_cast<size_t>(used->device())].idle.emplace_back(used);
    });
  }

  Result<core::DeviceMemory> Allocate(int device, uint64_t length_bytes) override {
    CAIRN_TRY_ASSIGN(const auto heap, HeapOf(device));
    return heap->Allocate(length_bytes);
  }

  Result<uint64_t> FreeBytes(int device) override {
    CAIRN_TRY_ASSIGN(const auto heap, HeapOf(device));
    return heap->FreeBytes();
  }

  Result<void> Pin(std::span<std::byte> memory) override {
    if (memory.empty()) return {};
    const internal::DeviceScope scope(AnyDevice());
    auto pinned = Check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable),
                        "page-locking host memory");
    if (pinned) return {};
    return Fail(pinned.error().code == ErrorCode::kFailedPrecondition
                    ? ErrorCode::kFailedPrecondition
                    : ErrorCode::kResourceExhausted,
                fmt::format("{} bytes of host memory cannot be page-locked: {}", memory.size(),
                            pinned.error().message));
  }
  void Unpin(std::span<std::byte> memory) override {
    if (memory.empty()) return;
    const internal::DeviceScope scope(AnyDevice());
    internal::Ignore(cudaHostUnregister(memory.data()));
  }

 private:
  struct Device {
    std::shared_ptr<const DeviceHeap> heap;  // shared with the memory that it has allocated
    std::vector<std::unique_ptr<core::DeviceQueue>> idle;
  };

  Result<std::shared_ptr<const DeviceHeap>> HeapOf(int device) {
    if (device < 0 || static_cast<size_t>(device) >= device_count_) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("there is no GPU {}; this process sees {}", device, device_count_));
    }
    const MutexLock lock(mutex_);
    std::shared_ptr<const DeviceHeap>& heap = devices_[static_cast<size_t>(device)].heap;
    if (heap == nullptr) {
      CAIRN_TRY_ASSIGN(heap, DeviceHeap::Make(device));
    }
    return heap;
  }

  // Returns a device that is in use, so that no context is created on another one; if there is
  // none, the current device.
  int AnyDevice() {
    const MutexLock lock(mutex_);
    for (const Device& device : devices_) {
      if (device.heap != nullptr) return device.heap->device();
    }
    int current = 0;
    internal::Ignore(cudaGetDevice(&current));
    return current;
  }

  const size_t device_count_;
  Mutex mutex_;
  std::vector<Device> devices_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

Result<core::DeviceBackend*> FindBackend() {
  static Mutex mutex;
  // Never destroyed: at the end of the process the driver may be unloaded first.
  static Backend* backend = nullptr;
  const MutexLock lock(mutex);
  if (backend != nullptr) return backend;
  int count = 0;
  CAIRN_TRY(Check(cudaGetDeviceCount(&count), "looking for GPUs"));
  if (count == 0) return Fail(ErrorCode::kFailedPrecondition, "there is no GPU");
  backend = new Backend(count);
  return backend;
}

}  // namespace cairn::cuda
