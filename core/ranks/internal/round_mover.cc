#include "core/ranks/internal/round_mover.h"

namespace cairn::core::internal {

Result<RoundBuffer> RoundBuffer::Make(uint64_t capacity_bytes, int device,
                                      const std::set<int>& devices) {
  RoundBuffer buffer;
  buffer.capacity_bytes_ = capacity_bytes;
  if (devices.contains(device)) {
    CAIRN_TRY_ASSIGN(DeviceBackend* const backend, FindDeviceBackend());
    CAIRN_TRY_ASSIGN(buffer.on_device_, backend->Allocate(device, capacity_bytes));
  }
  // If all tensors are on the device of the communicator, host memory is not used.
  const bool is_copied = devices.size() > (devices.contains(device) ? 1 : 0);
  auto memory = HostMemory::Allocate(capacity_bytes, {.pinned = is_copied});
  if (!memory && is_copied)
    memory = HostMemory::Allocate(capacity_bytes);  // pageable memory is only slower
  CAIRN_TRY_ASSIGN(buffer.memory_, std::move(memory));
  return buffer;
}

std::span<std::byte> RoundBuffer::Take(uint64_t count, int device) {
  CAIRN_CHECK(count <= capacity_bytes_ - used_bytes_);
  std::byte* const base = device == kHostDevice ? memory_.bytes().data() : on_device_.data();
  const std::span<std::byte> taken(base + used_bytes_, count);
  used_bytes_ += count;
  return taken;
}

Result<RoundMover> RoundMover::Make(const Communicator& communicator, uint64_t buffer_bytes,
                                    const std::set<int>& devices,
                                    std::span<const DeviceStream> streams) {
  RoundMover mover;
  mover.communicator_device_ = communicator.device();
  CAIRN_TRY_ASSIGN(mover.queues_, DeviceQueues::Open(devices, streams));
  CAIRN_TRY_ASSIGN(mover.buffer_,
                   RoundBuffer::Make(buffer_bytes, mover.communicator_device_, devices));
  return mover;
}

void RoundMover::Begin() {
  buffer_.Reset();
  staged_.clear();
}

Result<ByteTarget> RoundMover::Pack(const TensorStream<TensorView>& stream, uint64_t begin,
                                    uint64_t count) {
  const int device = count == 0 ? kHostDevice : BufferDevice(stream.MemoryOf(begin, count).device);
  const ByteTarget packed = buffer_.Take(count, device);
  Result<void> read;
  stream.ForEach(begin, count,
                 [&](const TensorView& view, uint64_t in_view, uint64_t at, uint64_t length) {
                   if (read) read = queues_.Read(view, in_view, packed.subspan(at, length), device);
                 });
  CAIRN_TRY(read);
  return packed;
}

Result<ByteView> RoundMover::Source(const TensorStream<TensorView>& stream, uint64_t begin,
                                    uint64_t count) {
  if (count == 0) return ByteView();
  const auto memory = stream.MemoryOf(begin, count);
  if (memory.data != nullptr && Accepts(memory.device)) return ByteView(memory.data, count);
  CAIRN_TRY_ASSIGN(const ByteView packed, Pack(stream, begin, count));
  return packed;
}

ByteTarget RoundMover::Target(const TensorStream<TensorTarget>& stream, uint64_t begin,
                              uint64_t count) {
  if (count == 0) return {};
  const auto memory = stream.MemoryOf(begin, count);
  if (memory.data != nullptr && Accepts(memory.device)) return {memory.data, count};
  const int device = BufferDevice(memory.device);
  const ByteTarget bytes = buffer_.Take(count, device);
  staged_.push_back({.stream = &stream, .begin = begin, .bytes = bytes, .device = device});
  return bytes;
}

Result<void> RoundMover::Packed() const { return queues_.Await(); }

Result<void> RoundMover::Unpack() {
  Result<void> written;
  for (const Staged& part : staged_) {
    part.stream->ForEach(
        part.begin, part.bytes.size(),
        [&](const TensorTarget& target, uint64_t in_target, uint64_t at, uint64_t length) {
          if (!written) return;
          written = queues_.Write(part.bytes.subspan(at, length), part.device, target, in_target);
        });
  }
  staged_.clear();
  CAIRN_TRY(written);
  return queues_.Await();
}

}  // namespace cairn::core::internal
