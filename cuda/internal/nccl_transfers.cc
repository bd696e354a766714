#include "cuda/internal/nccl_transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/div.h"

namespace cairn::cuda::internal {

Result<std::unique_ptr<NcclTransfers>> NcclTransfers::Make(int device, int world_size,
                                                           uint64_t buffer_bytes,
                                                           std::optional<cudaStream_t> follows) {
  if (buffer_bytes < MinBufferBytes(world_size)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("buffer_bytes of {} is too few for {} ranks; give at least {}",
                            buffer_bytes, world_size, MinBufferBytes(world_size)));
  }
  auto made = std::unique_ptr<NcclTransfers>(new NcclTransfers(device, buffer_bytes, follows));
  made->half_bytes_ = RoundDown((buffer_bytes - kAlignmentBytes) / kHalves, kAlignmentBytes);
  const auto others = static_cast<uint64_t>(std::max(world_size - 1, 1));
  made->slice_bytes_ = RoundDown(made->half_bytes_ / (2 * others), kAlignmentBytes);
  CAIRN_TRY_ASSIGN(made->moves_, Stream::Make());
  CAIRN_TRY_ASSIGN(made->copies_, Stream::Make());
  CAIRN_TRY_ASSIGN(made->caller_, Event::Make());
  CAIRN_TRY_ASSIGN(made->staged_, Event::Make());
  for (Event& event : made->moved_) {
    CAIRN_TRY_ASSIGN(event, Event::Make());
  }
  // Not from the stream-ordered allocator: other GPUs of the process cannot access its memory, and
  // if ranks are threads of one process, NCCL lets their GPUs access each other's memory directly.
  void* memory = nullptr;
  Result<void> allocated = Check(cudaMalloc(&memory, buffer_bytes), "allocating buffers");
  if (!allocated) {
    Error error = std::move(allocated).error();
    error.message = fmt::format("the communicator needs buffer_bytes = {} on device {}: {}",
                                buffer_bytes, device, error.message);
    return Fail(std::move(error));
  }
  made->memory_ = static_cast<std::byte*>(memory);
  CAIRN_TRY(Check(cudaMemsetAsync(memory, 0, kAlignmentBytes, made->moves_.get()),
                  "clearing the barrier's byte"));
  CAIRN_TRY(made->moves_.Synchronize());
  return made;
}

NcclTransfers::~NcclTransfers() {
  if (memory_ == nullptr) return;
  if (!frees_in_background_) {
    Ignore(cudaFree(memory_));
    return;
  }
  std::packaged_task<void()> free([memory = memory_, device = device_] {
    const DeviceScope scope(device);
    Ignore(cudaFree(memory));
  });
  const std::future<void> freed = free.get_future();
  auto started = kv::StartThread("the memory of NCCL", std::move(free));
  if (!started) return;  // the memory is freed when the process ends
  started->detach();
  (void)freed.wait_for(std::chrono::seconds(1));
}

Result<MemoryRange> NcclTransfers::Locate(core::ByteView bytes) const {
  MemoryRange range{.data = const_cast<std::byte*>(bytes.data()), .length_bytes = bytes.size()};
  if (bytes.empty()) return range;
  const DeviceScope scope(device_);  // otherwise the query creates a context on the current device
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, bytes.data());
  if (status ==
      cudaErrorInvalidValue) {  // the result of older runtimes for memory that CUDA does not know
    Ignore(status);
    return range;
  }
  CAIRN_TRY(Check(status, "querying the location of memory"));
  range.on_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device_) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("a range is in memory of device {}, but the communicator uses device {}",
                    attributes.device, device_));
  }
  return range;
}

Result<void> NcclTransfers::FollowCaller(std::span<const MemoryRange> sent,
                                         std::span<const MemoryRange> received) const {
  if (!follows_) return {};
  if (std::ranges::none_of(sent, &MemoryRange::on_device) &&
      std::ranges::none_of(received, &MemoryRange::on_device)) {
    return {};
  }
  CAIRN_TRY(caller_.Record(*follows_));
  CAIRN_TRY(copies_.WaitFor(caller_));
  return moves_.WaitFor(caller_);
}

Result<void> NcclTransfers::StartCopies(std::span<const Copy> copies) const {
  for (const Copy& copy : copies) {
    CAIRN_TRY(Check(cudaMemcpyAsync(copy.target, copy.source, copy.length_bytes, cudaMemcpyDefault,
                                    copies_.get()),
                    "copying between host and device"));
  }
  return {};
}

Result<void> NcclTransfers::WaitFor(const NcclHandle& nccl, const Event& event,
                                    Deadline deadline) const {
  constexpr const char* kWhat = "waiting for the other ranks";
  return Await(
      [&]() -> Result<bool> {
        CAIRN_TRY(nccl.IsIdle(kWhat));
        return event.Passed();
      },
      kWhat, deadline);
}

Result<void> NcclTransfers::Launch(NcclHandle& handle, const Step& step, Deadline deadline) const {
  const NcclLibrary& nccl = handle.nccl();
  ncclResult_t status = nccl.GroupStart();
  if (status == ncclSuccess) {
    for (const Operation& operation : step.operations) {
      const ncclResult_t enqueued = operation(handle, moves_.get());
      if (enqueued == ncclSuccess || enqueued == ncclInProgress) continue;
      status = enqueued;
      break;
    }
    // Also after an error: otherwise the thread's next group would be a part of this one.
    const ncclResult_t ended = nccl.GroupEnd();
    if (status == ncclSuccess) status = ended;
  }
  return handle.Drain(status, "starting transfers", deadline);
}

template <typename Next>
Result<void> NcclTransfers::RunSteps(NcclHandle& nccl, Deadline deadline, const Next& next) {
  Step step, before;
  uint64_t count = 0;
  const auto finish_before = [&]() -> Result<void> {
    if (count == 0) return {};
    CAIRN_TRY(WaitFor(nccl, moved_[(count - 1) % kHalves], deadline));
    return StartCopies(before.out);
  };
  // The half is free again: the host has waited for NCCL's work of the step that used it, and the
  // copies of this step run after the copies of that one, because they use the same stream.
  while (next(step, memory_ + kAlignmentBytes + count % kHalves * half_bytes_)) {
    CAIRN_TRY(StartCopies(step.in));
    CAIRN_TRY(staged_.Record(copies_.get()));
    CAIRN_TRY(moves_.WaitFor(staged_));
    CAIRN_TRY(Launch(nccl, step, deadline));
    CAIRN_TRY(moved_[count % kHalves].Record(moves_.get()));
    CAIRN_TRY(finish_before());
    std::swap(step, before);
    step = {};
    ++count;
  }
  CAIRN_TRY(finish_before());
  CAIRN_TRY(staged_.Record(copies_.get()));
  return WaitFor(nccl, staged_, deadline);
}

Result<void> NcclTransfers::Barrier(NcclHandle& nccl, Deadline deadline) {
  bool done = false;
  return RunSteps(nccl, deadline, [&](Step& step, std::byte*) {
    step.operations = {[data = memory_](const NcclHandle& handle, cudaStream_t stream) {
      return handle.nccl().AllReduce(data, data, 1, ncclUint8, ncclMax, handle.get(), stream);
    }};
    return !std::exchange(done, true);
  });
}

Result<void> NcclTransfers::Broadcast(NcclHandle& nccl, int rank, int root,
                                      const MemoryRange& bytes, Deadline deadline) {
  CAIRN_TRY(FollowCaller({&bytes, 1}, {}));
  uint64_t offset = 0;
  return RunSteps(nccl, deadline, [&](Step& step, std::byte* half) {
    if (offset == bytes.length_bytes) return false;
    const uint64_t count = std::min(bytes.length_bytes - offset, half_bytes_);
    std::byte* const here = bytes.data + offset;
    std::byte* const data = bytes.on_device ? here : half;
    step.operations = {[=](const NcclHandle& handle, cudaStream_t stream) {
      return handle.nccl().Broadcast(data, data, count, ncclUint8, root, handle.get(), stream);
    }};
    if (!bytes.on_device && rank == root) step.in = {{half, here, count}};
    if (!bytes.on_device && rank != root) step.out = {{here, half, count}};
    offset += count;
    return true;
  });
}

void NcclTransfers::AddSend(int peer, const MemoryRange& range, uint64_t offset_bytes,
                            std::byte* slot, Step& step) const {
  if (offset_bytes >= range.length_bytes) return;
  const uint64_t count = std::min(range.length_bytes - offset_bytes, slice_bytes_);
  std::byte* data = range.data + offset_bytes;
  if (!range.on_device) {
    // An AllGather sends the same bytes to all ranks: they are copied once.
    const auto same = std::ranges::find_if(step.in, [&](const Copy& copy) {
      return copy.source == data && copy.length_bytes == count;
    });
    if (same != step.in.end()) {
      data = same->target;
    } else {
      step.in.push_back({slot, data, count});
      data = slot;
    }
  }
  step.operations.push_back([=](const NcclHandle& handle, cudaStream_t stream) {
    return handle.nccl().Send(data, count, ncclUint8, peer, handle.get(), stream);
  });
}

void NcclTransfers::AddReceive(int peer, const MemoryRange& range, uint64_t offset_bytes,
                               std::byte* slot, Step& step) const {
  if (offset_bytes >= range.length_bytes) return;
  const uint64_t count = std::min(range.length_bytes - offset_bytes, slice_bytes_);
  std::byte* const data = range.on_device ? range.data + offset_bytes : slot;
  if (!range.on_device) step.out.push_back({range.data + offset_bytes, slot, count});
  step.operations.push_back([=](const NcclHandle& handle, cudaStream_t stream) {
    return handle.nccl().Recv(data, count, ncclUint8, peer, handle.get(), stream);
  });
}

Result<void> NcclTransfers::Exchange(NcclHandle& nccl, int rank, std::span<const MemoryRange> sent,
                                     std::span<const MemoryRange> received, Deadline deadline) {
  CAIRN_CHECK(sent.size() == received.size());
  CAIRN_CHECK(0 <= rank && static_cast<size_t>(rank) < sent.size());
  CAIRN_TRY(FollowCaller(sent, received));
  const MemoryRange& from = sent[static_cast<size_t>(rank)];
  const MemoryRange& to = received[static_cast<size_t>(rank)];
  if (!from.on_device && !to.on_device) {
    std::copy_n(from.data, from.length_bytes, to.data);
  } else if (from.length_bytes > 0) {
    const Copy own{to.data, from.data, from.length_bytes};
    CAIRN_TRY(StartCopies({&own, 1}));
  }
  const int world_size = static_cast<int>(sent.size());
  uint64_t longest = 0;
  for (size_t peer = 0; peer < sent.size(); ++peer) {
    if (peer == static_cast<size_t>(rank)) continue;
    longest = std::max({longest, sent[peer].length_bytes, received[peer].length_bytes});
  }
  uint64_t offset = 0;
  return RunSteps(nccl, deadline, [&](Step& step, std::byte* half) {
    if (offset >= longest) return false;
    std::byte* slot = half;
    for (int distance = 1; distance < world_size; ++distance) {
      const int target = (rank + distance) % world_size;
      const int source = (rank - distance + world_size) % world_size;
      AddSend(target, sent[static_cast<size_t>(target)], offset, slot, step);
      AddReceive(source, received[static_cast<size_t>(source)], offset, slot + slice_bytes_, step);
      slot += 2 * slice_bytes_;
    }
    offset += slice_bytes_;
    return true;
  });
}

void NcclTransfers::Drain(Deadline deadline) noexcept {
  for (const Stream* const stream : {&moves_, &copies_}) {
    if (!staged_.Record(stream->get())) continue;  // the device failed: it runs nothing
    // An error ends the wait too.
    (void)Await([&] { return staged_.Passed(); }, "draining", deadline);
  }
}

}  // namespace cairn::cuda::internal
