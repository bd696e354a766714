#include "cuda/internal/device_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/internal/copy_batch.h"
#include "cuda/internal/copy_kernels.h"
#include "cuda/internal/strided_copy.h"

namespace cairn::cuda::internal {
namespace {

constexpr size_t kBufferCount = 3;       // one is being filled, one is packed, one crosses the bus
constexpr uint64_t kHostAlignment = 64;  // alignment of host memory that may be in whole units
constexpr uint64_t kDirectBytes = 128 << 10;  // from this size on a copy is not packed
// The same where packed ranges that are adjacent on the host cross the bus together.
constexpr uint64_t kDirectJoinedBytes = 1 << 20;

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
    CAIRN_TRY(CheckNotCapturing(static_cast<cudaStream_t>(stream)));
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
  // Kernels that pack take microseconds, and copies wait for them; digests read everything.
  CAIRN_TRY_ASSIGN(queue->pack_, Stream::Make(Stream::Priority::kGreatest));
  CAIRN_TRY_ASSIGN(queue->digest_, Stream::Make(Stream::Priority::kLeast));
  queue->buffers_.resize(kBufferCount);
  for (Buffer& buffer : queue->buffers_) {
    CAIRN_TRY_ASSIGN(buffer.done, Event::Make());
  }
  return queue;
}

CudaQueue::~CudaQueue() { Reset(); }

void CudaQueue::Reset() {
  const DeviceScope scope(device());
  // Errors are ignored: the user of the queue has received them.
  (void)digest_.Synchronize();
  (void)pack_.Synchronize();
  (void)copy_.Synchronize();
  out_ = {};
  in_ = {};
  within_.clear();
  join_host_ranges_ = false;
  pack_is_ahead_ = false;
  copy_is_ahead_ = false;
  const MutexLock lock(marks_mutex_);
  marks_.clear();
}

Result<void> CudaQueue::WaitForStream(void* stream) {
  const DeviceScope scope(device());
  CAIRN_TRY(CheckNotCapturing(static_cast<cudaStream_t>(stream)));
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

Result<void> CudaQueue::OrderCopyAfterPack() {
  if (!std::exchange(pack_is_ahead_, false)) return {};
  return Order(pack_, copy_);
}

Result<void> CudaQueue::OrderPackAfterCopy() {
  if (!std::exchange(copy_is_ahead_, false)) return {};
  return Order(copy_, pack_);
}

bool CudaQueue::IsPacked(uint64_t length_bytes, std::span<const uint64_t> shape,
                         std::span<const uint64_t> strides) const {
  return length_bytes < (join_host_ranges_ ? kDirectJoinedBytes : kDirectBytes) ||
         !core::IsContiguous(shape, strides);
}

Result<void> CudaQueue::CopyOut(const core::TensorView& source, uint64_t begin_bytes,
                                std::span<std::byte> target) {
  if (target.empty()) return {};
  if (IsPacked(target.size(), source.shape, source.strides)) {
    return Collect(Direction::kOut, source, begin_bytes, target);
  }
  CAIRN_TRY(SendWithin());
  const DeviceScope scope(device());
  CAIRN_TRY(OrderCopyAfterPack());
  const uint64_t before =
      join_host_ranges_ ? out_.TakeBefore(source.data + begin_bytes, target.data()) : 0;
  return Check(cudaMemcpyAsync(target.data() - before, source.data + begin_bytes - before,
                               target.size() + before, cudaMemcpyDeviceToHost, copy_.get()),
               "copying from the GPU");
}

Result<void> CudaQueue::ZeroOut(std::span<std::byte> target) {
  if (target.empty()) return {};
  return Add(
      Direction::kOut,
      {.kind = BufferedCopy::Kind::kZero, .length_bytes = target.size(), .host = target.data()});
}

Result<void> CudaQueue::CopyIn(std::span<const std::byte> source, const core::TensorTarget& target,
                               uint64_t begin_bytes) {
  if (source.empty()) return {};
  if (IsPacked(source.size(), target.shape, target.strides)) {
    return Collect(Direction::kIn, AsView(target), begin_bytes,
                   {const_cast<std::byte*>(source.data()), source.size()});
  }
  CAIRN_TRY(SendWithin());
  const DeviceScope scope(device());
  CAIRN_TRY(OrderCopyAfterPack());
  copy_is_ahead_ = true;
  return Check(cudaMemcpyAsync(target.data + begin_bytes, source.data(), source.size(),
                               cudaMemcpyHostToDevice, copy_.get()),
               "copying to the GPU");
}

Result<void> CudaQueue::Collect(Direction direction, const core::TensorView& view,
                                uint64_t begin_bytes, std::span<std::byte> host) {
  CopyBatch& batch = direction == Direction::kOut ? out_ : in_;
  const bool contiguous = core::IsContiguous(view.shape, view.strides);
  // The collected bytes may not fit into a buffer. The cuts are multiples of every unit.
  while (!host.empty()) {
    const uint64_t length_bytes = std::min<uint64_t>(host.size(), kBufferBytes / 2);
    BufferedCopy copy{
        .device = AsDevice(view.data), .length_bytes = length_bytes, .host = host.data()};
    if (contiguous) {
      copy.device += begin_bytes;
      CAIRN_TRY(Add(direction, copy));
    } else {
      const uint64_t alignment =
          begin_bytes | length_bytes | (reinterpret_cast<uintptr_t>(host.data()) % kHostAlignment);
      copy.kind = BufferedCopy::Kind::kStrided;
      CAIRN_TRY_ASSIGN(const StridedShape shape, ShapeForCopy(view, alignment));
      copy.begin_units = begin_bytes / static_cast<uint64_t>(shape.unit_bytes);
      if (!batch.HasRoomFor(copy)) CAIRN_TRY(Send(direction));
      batch.AddStrided(copy, shape);
    }
    begin_bytes += length_bytes;
    host = host.subspan(length_bytes);
  }
  return {};
}

Result<void> CudaQueue::Add(Direction direction, const BufferedCopy& copy) {
  CopyBatch& batch = direction == Direction::kOut ? out_ : in_;
  if (!batch.HasRoomFor(copy)) CAIRN_TRY(Send(direction));
  batch.Add(copy);
  return {};
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

Result<uint32_t> CudaQueue::UploadJobs(Direction direction, const CopyBatch& batch,
                                       const BatchLayout& layout, const Buffer& buffer) {
  auto* const jobs = buffer.host_jobs.As<CopyJob>();
  uint32_t job_count = 0;
  for (size_t i = 0; i < batch.copies().size(); ++i) {
    const BufferedCopy& copy = batch.copies()[i];
    if (copy.kind == BufferedCopy::Kind::kStrided) continue;
    unsigned char* const packed = buffer.bytes.data() + layout.offsets_bytes[i];
    for (uint64_t at = 0; at < copy.length_bytes; at += kJobBytes) {
      CopyJob job{.target = packed + at,
                  .length_bytes = std::min(kJobBytes, copy.length_bytes - at)};
      if (copy.kind == BufferedCopy::Kind::kContiguous) job.source = copy.device + at;
      if (direction == Direction::kIn) {
        job.source = packed + at;
        job.target = copy.device + at;
      }
      jobs[job_count++] = job;
    }
  }
  // On the way in, on the stream of the tensors: an engine that copies takes long to change the
  // stream. On the way out, another engine copies the tensors.
  const Stream& stream = direction == Direction::kIn ? copy_ : pack_;
  if (job_count > 0) {
    CAIRN_TRY(Check(cudaMemcpyAsync(buffer.jobs.data(), jobs, job_count * sizeof(CopyJob),
                                    cudaMemcpyHostToDevice, stream.get()),
                    "copying the table of copy jobs to the GPU"));
  }
  return job_count;
}

Result<void> CudaQueue::Launch(Direction direction, const CopyBatch& batch,
                               const BatchLayout& layout, const Buffer& buffer,
                               uint32_t job_count) {
  CAIRN_TRY(Check(
      LaunchCopies(buffer.jobs.As<CopyJob>(), job_count, heap_->multiprocessors(), pack_.get()),
      "packing on the GPU"));
  for (size_t i = 0; i < batch.copies().size(); ++i) {
    const BufferedCopy& copy = batch.copies()[i];
    if (copy.kind != BufferedCopy::Kind::kStrided) continue;
    const StridedShape& shape = batch.shapes()[copy.shape];
    const StridedCopyJob job{
        .shape = shape,
        .tensor = copy.device,
        .begin_units = copy.begin_units,
        .unit_count = copy.length_bytes / static_cast<uint64_t>(shape.unit_bytes),
        .packed = buffer.bytes.data() + layout.offsets_bytes[i],
        .unpack = direction == Direction::kIn};
    CAIRN_TRY(Check(LaunchStrided(job, heap_->multiprocessors(), pack_.get()),
                    "packing a strided tensor on the GPU"));
  }
  return {};
}

Result<void> CudaQueue::Send(Direction direction) {
  CopyBatch& batch = direction == Direction::kOut ? out_ : in_;
  if (batch.empty()) return {};
  CAIRN_TRY(SendWithin());
  const DeviceScope scope(device());
  const CopyBatch sent = std::exchange(batch, {});
  if (sent.IsFewRanges()) return SendDirectly(direction, sent);
  const BatchLayout layout = sent.LayOut(direction, join_host_ranges_);
  CAIRN_TRY_ASSIGN(Buffer* const buffer, TakeBuffer());
  if (direction == Direction::kOut) {
    CAIRN_TRY(OrderPackAfterCopy());
    CAIRN_TRY_ASSIGN(const uint32_t jobs, UploadJobs(direction, sent, layout, *buffer));
    CAIRN_TRY(Launch(direction, sent, layout, *buffer, jobs));
    CAIRN_TRY(Order(pack_, copy_));
    pack_is_ahead_ = false;
    for (const HostRange& range : layout.host_ranges) {
      CAIRN_TRY(Check(cudaMemcpyAsync(range.host, buffer->bytes.data() + range.offset_bytes,
                                      range.length_bytes, cudaMemcpyDeviceToHost, copy_.get()),
                      "copying packed tensors from the GPU"));
    }
    return buffer->done.Record(copy_.get());
  }
  CAIRN_TRY_ASSIGN(const uint32_t jobs, UploadJobs(direction, sent, layout, *buffer));
  for (const HostRange& range : layout.host_ranges) {
    CAIRN_TRY(Check(cudaMemcpyAsync(buffer->bytes.data() + range.offset_bytes, range.host,
                                    range.length_bytes, cudaMemcpyHostToDevice, copy_.get()),
                    "copying packed tensors to the GPU"));
  }
  CAIRN_TRY(Order(copy_, pack_));
  copy_is_ahead_ = false;
  CAIRN_TRY(Launch(direction, sent, layout, *buffer, jobs));
  pack_is_ahead_ = true;
  return buffer->done.Record(pack_.get());
}

Result<void> CudaQueue::SendDirectly(Direction direction, const CopyBatch& batch) {
  CAIRN_TRY(OrderCopyAfterPack());
  for (const BufferedCopy& copy : batch.copies()) {
    if (copy.kind == BufferedCopy::Kind::kZero) {
      std::memset(copy.host, 0, copy.length_bytes);
    } else if (direction == Direction::kOut) {
      CAIRN_TRY(Check(cudaMemcpyAsync(copy.host, copy.device, copy.length_bytes,
                                      cudaMemcpyDeviceToHost, copy_.get()),
                      "copying from the GPU"));
    } else {
      copy_is_ahead_ = true;
      CAIRN_TRY(Check(cudaMemcpyAsync(copy.device, copy.host, copy.length_bytes,
                                      cudaMemcpyHostToDevice, copy_.get()),
                      "copying to the GPU"));
    }
  }
  return {};
}

Result<void> CudaQueue::AddWithin(bool unpack, const unsigned char* source, unsigned char* target,
                                  uint64_t length_bytes) {
  // An unpack may read what a pack writes, so the two are never in one launch.
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
            "copying the table of copy jobs to the GPU"));
  CAIRN_TRY(Check(LaunchCopies(buffer->jobs.As<CopyJob>(), static_cast<uint32_t>(jobs.size()),
                               heap_->multiprocessors(), pack_.get()),
                  "copying on the GPU"));
  pack_is_ahead_ = true;
  return buffer->done.Record(pack_.get());
}

Result<void> CudaQueue::Pack(const core::TensorView& source, uint64_t begin_bytes, uint64_t count,
                             std::byte* target) {
  return CopyWithin(source, begin_bytes, {AsDevice(target), count}, /*unpack=*/false);
}

Result<void> CudaQueue::Unpack(const std::byte* source, uint64_t count,
                               const core::TensorTarget& target, uint64_t begin_bytes) {
  return CopyWithin(AsView(target), begin_bytes, {AsDevice(source), count}, /*unpack=*/true);
}

Result<void> CudaQueue::CopyWithin(const core::TensorView& view, uint64_t begin_bytes,
                                   std::span<unsigned char> packed, bool unpack) {
  if (packed.empty()) return {};
  CAIRN_TRY(Send(Direction::kIn));  // it may write what is read here
  const DeviceScope scope(device());
  CAIRN_TRY(OrderPackAfterCopy());
  const bool contiguous = core::IsContiguous(view.shape, view.strides);
  unsigned char* const tensor = AsDevice(view.data) + begin_bytes;
  if (contiguous && packed.size() < kDirectBytes) {
    return unpack ? AddWithin(unpack, packed.data(), tensor, packed.size())
                  : AddWithin(unpack, tensor, packed.data(), packed.size());
  }
  CAIRN_TRY(SendWithin());
  pack_is_ahead_ = true;
  if (!contiguous) {
    return EnqueueStridedCopy(view, begin_bytes, packed,
                              unpack ? StridedDirection::kUnpack : StridedDirection::kPack,
                              heap_->multiprocessors(), pack_.get());
  }
  return Check(cudaMemcpyAsync(unpack ? tensor : packed.data(), unpack ? packed.data() : tensor,
                               packed.size(), cudaMemcpyDeviceToDevice, pack_.get()),
               "copying on the GPU");
}

Result<CudaQueue::Mark> CudaQueue::Flush() {
  CAIRN_TRY(SendWithin());
  CAIRN_TRY(Send(Direction::kOut));
  CAIRN_TRY(Send(Direction::kIn));
  const DeviceScope scope(device());
  CAIRN_TRY(OrderCopyAfterPack());
  CAIRN_TRY_ASSIGN(Event now, Event::Make());
  CAIRN_TRY(now.Record(copy_.get()));
  const MutexLock lock(marks_mutex_);
  marks_.emplace_back(next_mark_, std::make_shared<const Event>(std::move(now)));
  return next_mark_++;
}

Result<bool> CudaQueue::Passed(Mark mark) {
  const DeviceScope scope(device());  // a new thread would create a context on device 0
  const MutexLock lock(marks_mutex_);
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
    const MutexLock lock(marks_mutex_);
    const auto found =
        std::ranges::find(marks_, mark, &std::pair<Mark, std::shared_ptr<const Event>>::first);
    if (found == marks_.end()) return {};  // it has passed
    event = found->second;
  }
  return event->Wait();
}

Result<CudaQueue::Digests> CudaQueue::Digest(std::span<const core::DigestJob> jobs,
                                             const core::DevicePageDigests* base) {
  const DeviceScope scope(device());
  auto digests = [&]() -> Result<Digests> {
    // The kernels see the results of what was collected.
    CAIRN_TRY(SendWithin());
    CAIRN_TRY(Send(Direction::kIn));
    CAIRN_TRY(OrderPackAfterCopy());
    CAIRN_TRY(Order(pack_, digest_));
    return digester_.Digest(jobs, base);
  }();
  if (!digests) Reset();
  return digests;
}

Result<std::vector<uint64_t>> CudaQueue::FetchPageDigests(
    const core::DevicePageDigests& page_digests, std::span<const PageRange> ranges) {
  const auto& array = static_cast<const PageDigestArray&>(page_digests);
  uint64_t count = 0;
  for (const PageRange& range : ranges) {
    CAIRN_CHECK(range.first + range.count <= page_digests.page_count());
    count += range.count;
  }
  std::vector<uint64_t> fetched(count);
  if (count == 0) return fetched;
  const DeviceScope scope(device());
  const uint64_t length_bytes = count * sizeof(uint64_t);
  CAIRN_TRY_ASSIGN(std::byte* const results, digester_.HostResults(length_bytes));
  const bool joined = std::exchange(join_host_ranges_, true);  // the results are one allocation
  const auto copy_out = [&]() -> Result<void> {
    std::byte* at = results;
    for (const PageRange& range : ranges) {
      const auto source = std::as_bytes(std::span(array.data() + range.first, range.count));
      const core::TensorView view{.dtype = core::DType::kUInt8,
                                  .shape = {source.size()},
                                  .data = source.data(),
                                  .device = device()};
      CAIRN_TRY(CopyOut(view, 0, std::span(at, source.size())));
      at += source.size();
    }
    CAIRN_TRY_ASSIGN(const Mark mark, Flush());
    return Await(mark);
  };
  if (Result<void> copied = copy_out(); !copied) {
    Reset();  // the copies must end before their memory is freed
    return Fail(std::move(copied).error());
  }
  join_host_ranges_ = joined;
  std::memcpy(fetched.data(), results, length_bytes);
  return fetched;
}

}  // namespace cairn::cuda::internal
