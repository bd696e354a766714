#include "cuda/internal/nccl_transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "kv/base/catch_exhaustion.h"

namespace cairn::cuda::internal {
namespace {

/// The memory before the slots, where barriers reduce one byte.
constexpr uint64_t kBarrierBytes = ChunkLayout::kAlignmentBytes;

}  // namespace

Result<std::unique_ptr<NcclTransfers>> NcclTransfers::Make(int device, int world_size,
                                                           uint64_t buffer_bytes,
                                                           std::optional<cudaStream_t> follows) {
  CAIRN_CHECK(buffer_bytes >= kMinBufferBytes);
  auto made = std::unique_ptr<NcclTransfers>(new NcclTransfers(device, buffer_bytes, follows));
  made->layout_ = ChunkLayout::Of(world_size, buffer_bytes - kBarrierBytes);
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
  made->slots_ = made->memory_ + kBarrierBytes;
  CAIRN_TRY(Check(cudaMemsetAsync(memory, 0, kBarrierBytes, made->moves_.get()),
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
        CAIRN_TRY(nccl.CheckHealth(kWhat));
        return event.Passed();
      },
      kWhat, deadline);
}

ncclResult_t NcclTransfers::Enqueue(NcclHandle& handle, const Operation& operation,
                                    cudaStream_t stream) {
  const NcclLibrary& nccl = handle.nccl();
  std::byte* const data = operation.data;
  const uint64_t count = operation.length_bytes;
  switch (operation.kind) {
    case Operation::Kind::kSend:
      return nccl.Send(data, count, ncclUint8, operation.peer, handle.get(), stream);
    case Operation::Kind::kReceive:
      return nccl.Recv(data, count, ncclUint8, operation.peer, handle.get(), stream);
    case Operation::Kind::kBroadcast:
      return nccl.Broadcast(data, data, count, ncclUint8, operation.peer, handle.get(), stream);
    case Operation::Kind::kReduceOne:
      return nccl.AllReduce(data, data, count, ncclUint8, ncclMax, handle.get(), stream);
  }
  return ncclInternalError;
}

Result<void> NcclTransfers::Launch(NcclHandle& handle, const Step& step, Deadline deadline) const {
  const NcclLibrary& nccl = handle.nccl();
  ncclResult_t status = nccl.GroupStart();
  if (status == ncclSuccess) {
    for (const Operation& operation : step.operations) {
      const ncclResult_t enqueued = Enqueue(handle, operation, moves_.get());
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
    CAIRN_TRY(WaitFor(nccl, moved_[(count - 1) % ChunkLayout::kHalves], deadline));
    return StartCopies(before.out);
  };
  // The half is free again: the host has waited for NCCL's work of the step that used it, and the
  // copies of this step run after the copies of that one, because they use the same stream.
  while (next(step, slots_ + count % ChunkLayout::kHalves * layout_.half_bytes())) {
    CAIRN_TRY(StartCopies(step.in));
    CAIRN_TRY(staged_.Record(copies_.get()));
    CAIRN_TRY(moves_.WaitFor(staged_));
    CAIRN_TRY(Launch(nccl, step, deadline));
    CAIRN_TRY(moved_[count % ChunkLayout::kHalves].Record(moves_.get()));
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
    step.operations = {{Operation::Kind::kReduceOne, memory_, 1, 0}};
    return !std::exchange(done, true);
  });
}

Result<void> NcclTransfers::Broadcast(NcclHandle& nccl, int rank, int root,
                                      const MemoryRange& bytes, Deadline deadline) {
  CAIRN_TRY(FollowCaller({&bytes, 1}, {}));
  uint64_t offset = 0;
  return RunSteps(nccl, deadline, [&](Step& step, std::byte* half) {
    if (offset == bytes.length_bytes) return false;
    const uint64_t count = std::min(bytes.length_bytes - offset, layout_.half_bytes());
    std::byte* const here = bytes.data + offset;
    step.operations = {{Operation::Kind::kBroadcast, bytes.on_device ? here : half, count, root}};
    if (!bytes.on_device && rank == root) step.in = {{half, here, count}};
    if (!bytes.on_device && rank != root) step.out = {{here, half, count}};
    offset += count;
    return true;
  });
}

void NcclTransfers::AddSend(const PeerSlice& slice, const MemoryRange& range, std::byte* half,
                            Step& step) const {
  Operation operation{.kind = Operation::Kind::kSend,
                      .data = range.data + slice.offset_bytes,
                      .length_bytes = slice.length_bytes,
                      .peer = slice.peer};
  if (!range.on_device) {
    const std::byte* const source =
        std::exchange(operation.data, half + slice.slot * layout_.slice_bytes);
    // An AllGather sends the same bytes to all ranks: they are copied once.
    const auto same = std::ranges::find_if(step.in, [&](const Copy& copy) {
      return copy.source == source && copy.length_bytes == slice.length_bytes;
    });
    if (same != step.in.end()) {
      operation.data = same->target;
    } else {
      step.in.push_back({operation.data, source, slice.length_bytes});
    }
  }
  step.operations.push_back(operation);
}

void NcclTransfers::AddReceive(const PeerSlice& slice, const MemoryRange& range, std::byte* half,
                               Step& step) const {
  Operation operation{.kind = Operation::Kind::kReceive,
                      .data = range.data + slice.offset_bytes,
                      .length_bytes = slice.length_bytes,
                      .peer = slice.peer};
  if (!range.on_device) {
    std::byte* const target =
        std::exchange(operation.data, half + slice.slot * layout_.slice_bytes);
    step.out.push_back({target, operation.data, slice.length_bytes});
  }
  step.operations.push_back(operation);
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
  const auto lengths = [](std::span<const MemoryRange> ranges) {
    std::vector<uint64_t> lengths_bytes;
    for (const MemoryRange& range : ranges) lengths_bytes.push_back(range.length_bytes);
    return lengths_bytes;
  };
  ExchangeRounds rounds(layout_, rank, lengths(sent), lengths(received));
  Round round;
  return RunSteps(nccl, deadline, [&](Step& step, std::byte* half) {
    if (!rounds.Next(round)) return false;
    for (const PeerSlice& slice : round.sends) {
      AddSend(slice, sent[static_cast<size_t>(slice.peer)], half, step);
    }
    for (const PeerSlice& slice : round.receives) {
      AddReceive(slice, received[static_cast<size_t>(slice.peer)], half, step);
    }
    return true;
  });
}

void NcclTransfers::Drain(Deadline deadline) noexcept {
  for (const Stream* const stream : {&moves_, &copies_}) {
    if (!staged_.Record(stream->get())) continue;  // the device failed: it runs nothing
    (void)PollUntil(deadline, [&] { return staged_.Passed(); });  // an error ends the wait too
  }
}

}  // namespace cairn::cuda::internal
