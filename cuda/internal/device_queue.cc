// Copies of a queue: direct ones, and parts that go through a buffer on the device.

#include "cuda/internal/device_queue.h"

#include <algorithm>
#include <utility>

#include "cuda/internal/copy_kernels.h"
#include "cuda/internal/strided_shape.h"

namespace cairn::cuda::internal {
namespace {

constexpr size_t kBufferCount = 3;  // one is packed, one crosses the bus, one is being filled
constexpr uint64_t kBufferBytes = 8 << 20;
constexpr uint64_t kBufferAlignment = 64;
constexpr uint64_t kDirectBytes = 128
                                  << 10;  // from here on a copy of its own reaches the bus's speed
constexpr uint64_t kJobBytes = 8 << 10;   // a warp's work
constexpr uint64_t kMaxJobs = 16384;      // of one launch

// Memory between two multiples of it is one allocation, where runs may be joined.
constexpr uint64_t kJoinedBytes = 2 << 20;

uint64_t JobCount(uint64_t length_bytes) { return (length_bytes + kJobBytes - 1) / kJobBytes; }

unsigned char* AsDevice(const std::byte* data) {
  return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data));
}

core::TensorView AsView(const core::TensorTarget& target) {
  return {target.dtype, target.shape, target.strides, target.data, target.device};
}

class QueueFence final : public core::DeviceFence {
 public:
  QueueFence(Event event, int device) : event_(std::move(event)), device_(device) {}
  Result<void> Await() const override {
    const DeviceScope scope(device_);
    return event_.Wait();
  }
  Result<void> MakeStreamWait(void* stream) const override {
    const DeviceScope scope(device_);
    return Check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event_.get(), 0),
                 "making the caller's stream wait");
  }

 private:
  const Event event_;
  const int device_;
};

}  // namespace

Result<std::unique_ptr<CudaQueue>> CudaQueue::Make(std::shared_ptr<DeviceHeap> heap) {
  auto queue = std::unique_ptr<CudaQueue>(new CudaQueue(std::move(heap)));
  const DeviceScope scope(queue->device());
  CAIRN_TRY_ASSIGN(queue->copy_, Stream::Make());
  CAIRN_TRY_ASSIGN(queue->pack_, Stream::Make());
  queue->buffers_.resize(kBufferCount);
  for (Buffer& buffer : queue->buffers_) {
    CAIRN_TRY_ASSIGN(buffer.done, Event::Make());
  }
  return queue;
}

CudaQueue::~CudaQueue() { Reset(); }

void CudaQueue::Reset() {
  const DeviceScope scope(device());
  // What has failed is known to whoever used the queue.
  (void)pack_.Synchronize();
  (void)copy_.Synchronize();
  out_ = {};
  in_ = {};
  within_.clear();
  join_host_runs_ = false;
  pack_is_ahead_ = false;
  copy_is_ahead_ = false;
  const std::lock_guard lock(marks_mutex_);
  marks_.clear();
}

Result<void> CudaQueue::WaitForStream(void* stream) {
  const DeviceScope scope(device());
  CAIRN_TRY_ASSIGN(const Event now, Event::Make());
  CAIRN_TRY(now.Record(static_cast<cudaStream_t>(stream)));
  CAIRN_TRY(pack_.WaitFor(now));
  return copy_.WaitFor(now);
}

Result<std::shared_ptr<const core::DeviceFence>> CudaQueue::Fence() {
  CAIRN_TRY(Flush());
  const DeviceScope scope(device());
  CAIRN_TRY_ASSIGN(Event now, Event::Make());
  CAIRN_TRY(now.Record(copy_.get()));
  return std::make_shared<const QueueFence>(std::move(now), device());
}

Result<void> CudaQueue::Order(const Stream& first, const Stream& second) {
  CAIRN_TRY_ASSIGN(const Event now, Event::Make());
  CAIRN_TRY(now.Record(first.get()));
  return second.WaitFor(now);
}

Result<void> CudaQueue::CopyOut(const core::TensorView& source, uint64_t begin_bytes,
                           std::span<std::byte> target) {
  if (target.empty()) return {};
  if (target.size() < kDirectBytes || !core::IsContiguous(source.shape, source.strides)) {
    return Collect(Direction::kOut, source, begin_bytes, target.data(), target.size());
  }
  CAIRN_TRY(SendWithin());
  const DeviceScope scope(device());
  if (pack_is_ahead_) CAIRN_TRY(Order(pack_, copy_));
  pack_is_ahead_ = false;
  const uint64_t before = TakeBefore(source.data + begin_bytes, target.data());
  return Check(cudaMemcpyAsync(target.data() - before, source.data + begin_bytes - before,
                               target.size() + before, cudaMemcpyDeviceToHost, copy_.get()),
               "copying from the GPU");
}

// A segment's header shifts all chunks against the blocks: without this each block of a large
// tensor would begin with a small part.
uint64_t CudaQueue::TakeBefore(const std::byte* device, const std::byte* host) {
  if (!join_host_runs_ || out_.list.empty() ||
      reinterpret_cast<uintptr_t>(host) % kJoinedBytes == 0) {
    return 0;
  }
  const Part& last = out_.list.back();
  if (last.kind != Part::Kind::kRun || last.device + last.length_bytes != AsDevice(device) ||
      last.host + last.length_bytes != host) {
    return 0;
  }
  const uint64_t length_bytes = last.length_bytes;
  out_.buffer_bytes -= length_bytes + 2 * kBufferAlignment;
  out_.job_count -= JobCount(last.length_bytes);
  out_.list.pop_back();
  return length_bytes;
}

Result<void> CudaQueue::ZeroOut(std::span<std::byte> target) {
  if (target.empty()) return {};
  return Add(Direction::kOut,
             {.kind = Part::Kind::kZero, .length_bytes = target.size(), .host = target.data()});
}

Result<void> CudaQueue::CopyIn(std::span<const std::byte> source, const core::TensorTarget& target,
                          uint64_t begin_bytes) {
  if (source.empty()) return {};
  if (source.size() < kDirectBytes || !core::IsContiguous(target.shape, target.strides)) {
    return Collect(Direction::kIn, AsView(target), begin_bytes,
                   const_cast<std::byte*>(source.data()), source.size());
  }
  CAIRN_TRY(SendWithin());
  const DeviceScope scope(device());
  if (pack_is_ahead_) CAIRN_TRY(Order(pack_, copy_));
  pack_is_ahead_ = false;
  copy_is_ahead_ = true;
  return Check(cudaMemcpyAsync(target.data + begin_bytes, source.data(), source.size(),
                               cudaMemcpyHostToDevice, copy_.get()),
               "copying to the GPU");
}

Result<void> CudaQueue::Collect(Direction direction, const core::TensorView& view, uint64_t begin_bytes,
                           std::byte* host, uint64_t count) {
  const bool contiguous = core::IsContiguous(view.shape, view.strides);
  // A part may be larger than a buffer. The cuts are multiples of every unit.
  while (count > 0) {
    const uint64_t length_bytes = std::min(count, kBufferBytes / 2);
    Part part{.device = AsDevice(view.data), .length_bytes = length_bytes, .host = host};
    if (contiguous) {
      part.device += begin_bytes;
    } else {
      const uint64_t alignment =
          begin_bytes | length_bytes | (reinterpret_cast<uintptr_t>(host) % kBufferAlignment);
      part.kind = Part::Kind::kStrided;
      CAIRN_TRY_ASSIGN(part.shape, ShapeForCopy(view, alignment));
      part.begin_units = begin_bytes / static_cast<uint64_t>(part.shape.unit_bytes);
    }
    CAIRN_TRY(Add(direction, part));
    begin_bytes += length_bytes;
    host += length_bytes;
    count -= length_bytes;
  }
  return {};
}

Result<void> CudaQueue::Add(Direction direction, const Part& part) {
  Parts& parts = direction == Direction::kOut ? out_ : in_;
  // A run begins where its host memory does, of 64; so no part takes more than this.
  const uint64_t taken_bytes = part.length_bytes + 2 * kBufferAlignment;
  const uint64_t job_count = part.kind == Part::Kind::kStrided ? 0 : JobCount(part.length_bytes);
  if (parts.buffer_bytes + taken_bytes > kBufferBytes || parts.job_count + job_count > kMaxJobs) {
    CAIRN_TRY(Send(direction));
  }
  parts.list.push_back(part);
  parts.buffer_bytes += taken_bytes;
  parts.job_count += job_count;
  return {};
}

std::optional<uint64_t> CudaQueue::GapTo(Direction direction, const Run& run, const Part& part) const {
  const std::byte* const end = run.host + run.length_bytes;
  if (!join_host_runs_ || part.host < end) return std::nullopt;
  if (reinterpret_cast<uintptr_t>(part.host) / kJoinedBytes !=
      reinterpret_cast<uintptr_t>(end - 1) / kJoinedBytes) {
    return std::nullopt;
  }
  const auto gap_bytes = static_cast<uint64_t>(part.host - end);
  // What lies in a gap is only read on the way in, and not looked at.
  if (gap_bytes > 0 && (direction == Direction::kOut || gap_bytes >= kBufferAlignment)) {
    return std::nullopt;
  }
  return gap_bytes;
}

CudaQueue::Layout CudaQueue::LayOut(Direction direction, const Parts& parts) const {
  Layout layout;
  layout.offsets_bytes.reserve(parts.list.size());
  uint64_t end_bytes = 0;
  for (const Part& part : parts.list) {
    std::optional<uint64_t> gap_bytes;
    if (!layout.runs.empty()) gap_bytes = GapTo(direction, layout.runs.back(), part);
    if (gap_bytes) {
      end_bytes += *gap_bytes;
      layout.runs.back().length_bytes += *gap_bytes;
    } else {
      // Alike to the host's address, so that what is aligned there is aligned here.
      end_bytes = (end_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment +
                  reinterpret_cast<uintptr_t>(part.host) % kBufferAlignment;
      layout.runs.push_back({.offset_bytes = end_bytes, .length_bytes = 0, .host = part.host});
    }
    layout.offsets_bytes.push_back(end_bytes);
    layout.runs.back().length_bytes += part.length_bytes;
    end_bytes += part.length_bytes;
  }
  return layout;
}

Result<CudaQueue::Buffer*> CudaQueue::TakeBuffer() {
  Buffer& buffer = buffers_[next_buffer_];
  next_buffer_ = (next_buffer_ + 1) % buffers_.size();
  if (buffer.used) CAIRN_TRY(buffer.done.Wait());
  CAIRN_TRY(heap_->Grow(buffer.bytes, kBufferBytes));
  CAIRN_TRY(heap_->Grow(buffer.jobs, kMaxJobs * sizeof(CopyJob)));
  CAIRN_TRY(buffer.host_jobs.Grow(kMaxJobs * sizeof(CopyJob)));
  buffer.used = true;
  return &buffer;
}

Result<void> CudaQueue::Launch(Direction direction, const Parts& parts, const Layout& layout,
                          const Buffer& buffer) {
  auto* const jobs = buffer.host_jobs.As<CopyJob>();
  uint32_t job_count = 0;
  for (size_t i = 0; i < parts.list.size(); ++i) {
    const Part& part = parts.list[i];
    if (part.kind == Part::Kind::kStrided) continue;
    unsigned char* const packed = buffer.bytes.data() + layout.offsets_bytes[i];
    for (uint64_t at = 0; at < part.length_bytes; at += kJobBytes) {
      CopyJob job{.target = packed + at,
                  .length_bytes = std::min(kJobBytes, part.length_bytes - at)};
      if (part.kind == Part::Kind::kRun) job.source = part.device + at;
      if (direction == Direction::kIn) {
        job.source = packed + at;
        job.target = part.device + at;
      }
      jobs[job_count++] = job;
    }
  }
  if (job_count > 0) {
    CAIRN_TRY(Check(cudaMemcpyAsync(buffer.jobs.data(), jobs, job_count * sizeof(CopyJob),
                                    cudaMemcpyHostToDevice, pack_.get()),
                    "telling the GPU what to pack"));
    CAIRN_TRY(Check(
        LaunchCopies(buffer.jobs.As<CopyJob>(), job_count, heap_->multiprocessors(), pack_.get()),
        "packing on the GPU"));
  }
  for (size_t i = 0; i < parts.list.size(); ++i) {
    const Part& part = parts.list[i];
    if (part.kind != Part::Kind::kStrided) continue;
    CAIRN_TRY(
        Check(LaunchStrided(part.shape, part.device, part.begin_units,
                            part.length_bytes / static_cast<uint64_t>(part.shape.unit_bytes),
                            buffer.bytes.data() + layout.offsets_bytes[i],
                            direction == Direction::kIn, heap_->multiprocessors(), pack_.get()),
              "packing a strided tensor on the GPU"));
  }
  return {};
}

Result<void> CudaQueue::Send(Direction direction) {
  Parts& parts = direction == Direction::kOut ? out_ : in_;
  if (parts.empty()) return {};
  CAIRN_TRY(SendWithin());
  const DeviceScope scope(device());
  const Parts sent = std::exchange(parts, {});
  const Layout layout = LayOut(direction, sent);
  CAIRN_TRY_ASSIGN(Buffer* const buffer, TakeBuffer());
  if (direction == Direction::kOut) {
    if (copy_is_ahead_) CAIRN_TRY(Order(copy_, pack_));
    copy_is_ahead_ = false;
    CAIRN_TRY(Launch(direction, sent, layout, *buffer));
    CAIRN_TRY(Order(pack_, copy_));
    pack_is_ahead_ = false;
    for (const Run& run : layout.runs) {
      CAIRN_TRY(Check(cudaMemcpyAsync(run.host, buffer->bytes.data() + run.offset_bytes,
                                      run.length_bytes, cudaMemcpyDeviceToHost, copy_.get()),
                      "copying packed tensors from the GPU"));
    }
    return buffer->done.Record(copy_.get());
  }
  for (const Run& run : layout.runs) {
    CAIRN_TRY(Check(cudaMemcpyAsync(buffer->bytes.data() + run.offset_bytes, run.host,
                                    run.length_bytes, cudaMemcpyHostToDevice, copy_.get()),
                    "copying packed tensors to the GPU"));
  }
  CAIRN_TRY(Order(copy_, pack_));
  copy_is_ahead_ = false;
  CAIRN_TRY(Launch(direction, sent, layout, *buffer));
  pack_is_ahead_ = true;
  return buffer->done.Record(pack_.get());
}

Result<void> CudaQueue::CopyStrided(const core::TensorView& view, uint64_t begin_bytes, uint64_t count,
                               unsigned char* packed, bool unpack) {
  const uint64_t alignment = begin_bytes | count | reinterpret_cast<uintptr_t>(packed);
  CAIRN_TRY_ASSIGN(const StridedShape shape, ShapeForCopy(view, alignment));
  const auto unit_bytes = static_cast<uint64_t>(shape.unit_bytes);
  return Check(
      LaunchStrided(shape, AsDevice(view.data), begin_bytes / unit_bytes, count / unit_bytes,
                    packed, unpack, heap_->multiprocessors(), pack_.get()),
      "packing a strided tensor on the GPU");
}

Result<void> CudaQueue::AddWithin(bool unpack, const unsigned char* source, unsigned char* target,
                             uint64_t length_bytes) {
  // What was packed may be unpacked next: the two kinds are never in one launch.
  if (within_unpacks_ != unpack) CAIRN_TRY(SendWithin());
  within_unpacks_ = unpack;
  if (within_.size() + JobCount(length_bytes) > kMaxJobs) CAIRN_TRY(SendWithin());
  for (uint64_t at = 0; at < length_bytes; at += kJobBytes) {
    within_.push_back({.source = source + at,
                       .target = target + at,
                       .length_bytes = std::min(kJobBytes, length_bytes - at)});
  }
  return {};
}

Result<void> CudaQueue::SendWithin() {
  if (within_.empty()) return {};
  const DeviceScope scope(device());
  const std::vector<CopyJob> jobs = std::exchange(within_, {});
  CAIRN_TRY_ASSIGN(Buffer* const buffer, TakeBuffer());
  std::ranges::copy(jobs, buffer->host_jobs.As<CopyJob>());
  CAIRN_TRY(
      Check(cudaMemcpyAsync(buffer->jobs.data(), buffer->host_jobs.data(),
                            jobs.size() * sizeof(CopyJob), cudaMemcpyHostToDevice, pack_.get()),
            "telling the GPU what to copy"));
  CAIRN_TRY(Check(LaunchCopies(buffer->jobs.As<CopyJob>(), static_cast<uint32_t>(jobs.size()),
                               heap_->multiprocessors(), pack_.get()),
                  "copying on the GPU"));
  pack_is_ahead_ = true;
  return buffer->done.Record(pack_.get());
}

Result<void> CudaQueue::Pack(const core::TensorView& source, uint64_t begin_bytes, uint64_t count,
                        std::byte* target) {
  return CopyWithin(source, begin_bytes, count, AsDevice(target), /*unpack=*/false);
}

Result<void> CudaQueue::Unpack(const std::byte* source, uint64_t count, const core::TensorTarget& target,
                          uint64_t begin_bytes) {
  return CopyWithin(AsView(target), begin_bytes, count, AsDevice(source), /*unpack=*/true);
}

Result<void> CudaQueue::CopyWithin(const core::TensorView& view, uint64_t begin_bytes, uint64_t count,
                              unsigned char* packed, bool unpack) {
  if (count == 0) return {};
  CAIRN_TRY(Send(Direction::kIn));  // which may write what is read here
  const DeviceScope scope(device());
  if (copy_is_ahead_) CAIRN_TRY(Order(copy_, pack_));
  copy_is_ahead_ = false;
  const bool contiguous = core::IsContiguous(view.shape, view.strides);
  unsigned char* const tensor = AsDevice(view.data) + begin_bytes;
  if (contiguous && count < kDirectBytes) {
    return unpack ? AddWithin(unpack, packed, tensor, count)
                  : AddWithin(unpack, tensor, packed, count);
  }
  CAIRN_TRY(SendWithin());
  pack_is_ahead_ = true;
  if (!contiguous) return CopyStrided(view, begin_bytes, count, packed, unpack);
  return Check(cudaMemcpyAsync(unpack ? tensor : packed, unpack ? packed : tensor, count,
                               cudaMemcpyDeviceToDevice, pack_.get()),
               "copying on the GPU");
}

Result<CudaQueue::Mark> CudaQueue::Flush() {
  CAIRN_TRY(SendWithin());
  CAIRN_TRY(Send(Direction::kOut));
  CAIRN_TRY(Send(Direction::kIn));
  const DeviceScope scope(device());
  if (pack_is_ahead_) CAIRN_TRY(Order(pack_, copy_));
  pack_is_ahead_ = false;
  CAIRN_TRY_ASSIGN(Event now, Event::Make());
  CAIRN_TRY(now.Record(copy_.get()));
  const std::lock_guard lock(marks_mutex_);
  marks_.emplace_back(next_mark_, std::make_shared<const Event>(std::move(now)));
  return next_mark_++;
}

Result<bool> CudaQueue::Passed(Mark mark) {
  const DeviceScope scope(device());  // a new thread would make a context on device 0
  const std::lock_guard lock(marks_mutex_);
  while (!marks_.empty() && marks_.front().first <= mark) {
    CAIRN_TRY_ASSIGN(const bool passed, marks_.front().second->Passed());
    if (!passed) return false;
    marks_.pop_front();
  }
  return true;
}

Result<void> CudaQueue::Await(Mark mark) {
  const DeviceScope scope(device());
  std::shared_ptr<const Event> event;
  {
    const std::lock_guard lock(marks_mutex_);
    const auto found =
        std::ranges::find(marks_, mark, &std::pair<Mark, std::shared_ptr<const Event>>::first);
    if (found == marks_.end()) return {};  // passed before
    event = found->second;
  }
  return event->Wait();
}

}  // namespace cairn::cuda::internal
