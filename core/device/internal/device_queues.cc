#include "core/device/internal/device_queues.h"

#include <algorithm>

#include "core/tensor/strided_copy.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kBounceBytes = 4 << 20;

// Whether a queue copies directly between the two.
bool CanCopyDirectly(int tensor_device, int memory_device) {
  return memory_device == kHostDevice || memory_device == tensor_device;
}

}  // namespace

Result<std::vector<DeviceStream>> WaitForStreams(DeviceQueue& queue,
                                                 std::span<const DeviceStream> streams) {
  std::vector<DeviceStream> followed;
  for (const DeviceStream& stream : streams) {
    if (stream.device == queue.device()) followed.push_back(stream);
  }
  if (followed.empty()) followed.push_back({.device = queue.device()});
  for (const DeviceStream& stream : followed) CAIRN_TRY(queue.WaitForStream(stream.stream));
  return followed;
}

Result<DeviceQueues> DeviceQueues::Open(const std::set<int>& devices,
                                        std::span<const DeviceStream> streams) {
  DeviceQueues opened;
  if (devices.empty()) return opened;
  CAIRN_TRY_ASSIGN(DeviceBackend* const backend, FindDeviceBackend());
  for (const int device : devices) {
    CAIRN_TRY_ASSIGN(auto queue, backend->OpenQueue(device));
    CAIRN_TRY(WaitForStreams(*queue, streams));
    opened.queues_.emplace(device, std::move(queue));
  }
  CAIRN_TRY(opened.Await());
  return opened;
}

Result<void> DeviceQueues::Read(const TensorView& source, uint64_t begin_bytes,
                                std::span<std::byte> memory, int memory_device) const {
  if (source.device == kHostDevice) {
    CAIRN_CHECK(memory_device == kHostDevice);
    GatherBytes(source, begin_bytes, memory);
    return {};
  }
  CAIRN_CHECK(CanCopyDirectly(source.device, memory_device));
  DeviceQueue& queue = On(source.device);
  if (memory_device == kHostDevice) return queue.CopyOut(source, begin_bytes, memory);
  return queue.Pack(source, begin_bytes, memory.size(), memory.data());
}

Result<void> DeviceQueues::Write(std::span<const std::byte> memory, int memory_device,
                                 const TensorTarget& target, uint64_t begin_bytes) const {
  if (target.device == kHostDevice) {
    CAIRN_CHECK(memory_device == kHostDevice);
    ScatterBytes(memory, target, begin_bytes);
    return {};
  }
  CAIRN_CHECK(CanCopyDirectly(target.device, memory_device));
  DeviceQueue& queue = On(target.device);
  if (memory_device == kHostDevice) return queue.CopyIn(memory, target, begin_bytes);
  return queue.Unpack(memory.data(), memory.size(), target, begin_bytes);
}

Result<void> DeviceQueues::CopyThroughHost(const TensorView& source, const TensorTarget& target,
                                           uint64_t length_bytes) const {
  CAIRN_TRY_ASSIGN(const HostMemory bounce,
                   HostMemory::Allocate(std::min(length_bytes, kBounceBytes)));
  const auto copy = [&]() -> Result<void> {
    for (uint64_t at = 0; at < length_bytes; at += kBounceBytes) {
      const auto part = bounce.bytes().first(std::min(length_bytes - at, kBounceBytes));
      CAIRN_TRY(Read(source, at, part, kHostDevice));
      CAIRN_TRY(Await());
      CAIRN_TRY(Write(part, kHostDevice, target, at));
      CAIRN_TRY(Await());
    }
    return {};
  };
  Result<void> copied = copy();
  if (!copied) {
    for (const auto& [device, queue] : queues_) queue->Reset();  // before `bounce` is freed
  }
  return copied;
}

Result<void> DeviceQueues::Copy(const TensorView& source, const TensorTarget& target) const {
  if (source.device == kHostDevice && target.device == kHostDevice) {
    CopyTensor(source, target);
    return {};
  }
  const uint64_t length_bytes = *TensorBytes(source.dtype, source.shape);
  if (length_bytes == 0) return {};
  if (source.device == target.device && source.data == target.data)
    return {};  // source and target are the same tensor
  if (source.device != kHostDevice && CanCopyDirectly(source.device, target.device) &&
      IsContiguous(target.shape, target.strides)) {
    return Read(source, 0, {target.data, length_bytes}, target.device);
  }
  if (target.device != kHostDevice && CanCopyDirectly(target.device, source.device) &&
      IsContiguous(source.shape, source.strides)) {
    return Write({source.data, length_bytes}, source.device, target, 0);
  }
  return CopyThroughHost(source, target, length_bytes);
}

Result<void> DeviceQueues::Await() const {
  std::vector<std::shared_ptr<const DeviceFence>> fences;
  for (const auto& [device, queue] : queues_) {
    CAIRN_TRY_ASSIGN(fences.emplace_back(), queue->Flush());
  }
  for (const auto& fence : fences) CAIRN_TRY(fence->Await());
  return {};
}

}  // namespace cairn::core::internal
