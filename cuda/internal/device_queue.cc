// Copies to and from one device, over two streams and bounded buffers in device memory.
//
// The copy stream carries what crosses the bus, and the pack stream the kernels, so that packing
// and copying overlap; events order the two where one depends on the other. Large contiguous
// copies cross the bus directly. Small and strided ones are collected. On the way out, one kernel
// packs them into a buffer in device memory, from which each contiguous range of host memory
// crosses as one copy; on the way in, the ranges are copied to the buffer first and then unpacked.

#include "cuda/internal/device_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "cuda/internal/copy_batch.h"
#include "cuda/internal/kernels.h"
#include "cuda/internal/page_digester.h"
#include "cuda/internal/stream.h"
#include "cuda/internal/strided_copy.h"
#include "kv/base/div.h"

namespace cairn::cuda::internal {
namespace {

constexpr uint64_t kHostAlignment = 64;       // alignment of host memory that may be in whole units
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
    const DeviceScope scope(device_);  // a new thread would create a context on device 0
    return event_.Wait();
  }
  Result<bool> Passed() const override {
    const DeviceScope scope(device_);
    return event_.Passed();
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

class CudaQueue final : public core::DeviceQueue {
 public:
  explicit CudaQueue(std::shared_ptr<const DeviceHeap> heap) : heap_(std::move(heap)) {}
  ~CudaQueue() override { Reset(); }

  /// Call once, before all other members.
  Result<void> Open() {
    const DeviceScope scope(device());
    CAIRN_TRY_ASSIGN(copy_, Stream::Make());
    // Kernels that pack take microseconds, and copies wait for them; digests read everything.
    CAIRN_TRY_ASSIGN(pack_, Stream::Make(Stream::Priority::kGreatest));
    CAIRN_TRY_ASSIGN(digest_, Stream::Make(Stream::Priority::kLeast));
    for (Buffer& buffer : buffers_) {
      CAIRN_TRY_ASSIGN(buffer.done, Event::Make());
    }
    return {};
  }

  int device() const override { return heap_->device(); }
  void JoinHostRanges(bool join) override { join_host_ranges_ = join; }

  Result<void> WaitForStream(void* stream) override {
    const DeviceScope scope(device());
    CAIRN_TRY(CheckNotCapturing(static_cast<cudaStream_t>(stream)));
    CAIRN_TRY_ASSIGN(const Event now, Event::Make());
    CAIRN_TRY(now.Record(static_cast<cudaStream_t>(stream)));
    CAIRN_TRY(pack_.WaitFor(now));
    return copy_.WaitFor(now);
  }

  Result<void> CopyOut(const core::TensorView& source, uint64_t begin_bytes,
                       std::span<std::byte> target) override {
    if (target.empty()) return {};
    if (IsPacked(target.size(), source.shape, source.strides)) {
      return Collect(Direction::kOut, source, begin_bytes, target);
    }
    const std::byte* const from = source.data + begin_bytes;
    const uint64_t before = join_host_ranges_ ? out_.TakeBefore(from, target.data()) : 0;
    return CopyDirectly(Direction::kOut, AsDevice(from - before), target.data() - before,
                        target.size() + before);
  }

  Result<void> ZeroOut(std::span<std::byte> target) override {
    if (target.empty()) return {};
    return Add(Direction::kOut, {.length_bytes = target.size(), .host = target.data()});
  }

  Result<void> CopyIn(std::span<const std::byte> source, const core::TensorTarget& target,
                      uint64_t begin_bytes) override {
    if (source.empty()) return {};
    const std::span host(const_cast<std::byte*>(source.data()), source.size());
    if (IsPacked(source.size(), target.shape, target.strides)) {
      return Collect(Direction::kIn, AsView(target), begin_bytes, host);
    }
    return CopyDirectly(Direction::kIn, AsDevice(target.data + begin_bytes), host.data(),
                        host.size());
  }

  Result<void> Pack(const core::TensorView& source, uint64_t begin_bytes, uint64_t count,
                    std::byte* target) override {
    return CopyWithin(source, begin_bytes, {AsDevice(target), count}, /*unpack=*/false);
  }
  Result<void> Unpack(const std::byte* source, uint64_t count, const core::TensorTarget& target,
                      uint64_t begin_bytes) override {
    return CopyWithin(AsView(target), begin_bytes, {AsDevice(source), count}, /*unpack=*/true);
  }

  void Reset() override {
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
  }

  Result<std::shared_ptr<const core::DeviceFence>> Flush() override {
    CAIRN_TRY(SendWithin());
    CAIRN_TRY(Send(Direction::kOut));
    CAIRN_TRY(Send(Direction::kIn));
    const DeviceScope scope(device());
    CAIRN_TRY(OrderCopyAfterPack());
    CAIRN_TRY_ASSIGN(Event now, Event::Make());
    CAIRN_TRY(now.Record(copy_.get()));
    return std::make_shared<const QueueFence>(std::move(now), device());
  }

  Result<Digests> Digest(std::span<const core::DigestJob> jobs,
                         const core::DeviceMemory& base) override {
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

  Result<std::vector<uint64_t>> FetchPageDigests(const core::DeviceMemory& page_digests,
                                                 std::span<const PageRange> ranges) override {
    std::vector<uint64_t> fetched;
    if (ranges.empty()) return fetched;
    uint64_t begin = ~uint64_t{0};
    uint64_t end = 0;
    for (const PageRange& range : ranges) {
      begin = std::min(begin, range.first);
      end = std::max(end, range.first + range.count);
    }
    CAIRN_CHECK(end * sizeof(uint64_t) <= page_digests.length_bytes());
    const DeviceScope scope(device());
    std::vector<uint64_t> all(end - begin);
    if (!all.empty()) {
      CAIRN_TRY(digester_.FetchTo(page_digests.data() + begin * sizeof(uint64_t),
                                  std::as_writable_bytes(std::span(all))));
    }
    for (const PageRange& range : ranges) {
      const auto first = all.begin() + static_cast<ptrdiff_t>(range.first - begin);
      fetched.insert(fetched.end(), first, first + static_cast<ptrdiff_t>(range.count));
    }
    return fetched;
  }

 private:
  /// A buffer in device memory, with the table of the copies from or to it.
  struct Buffer {
    core::DeviceMemory bytes;
    core::DeviceMemory jobs;
    PinnedBuffer host_jobs;
    Event done;
    bool used = false;

    std::span<CopyJob> table() const {
      return {reinterpret_cast<CopyJob*>(host_jobs.data()), kMaxJobs};
    }
  };

  /// True if a copy over the bus goes through a buffer.
  bool IsPacked(uint64_t length_bytes, std::span<const uint64_t> shape,
                std::span<const uint64_t> strides) const {
    return length_bytes < (join_host_ranges_ ? kDirectJoinedBytes : kDirectBytes) ||
           !core::IsContiguous(shape, strides);
  }

  CopyBatch& Batch(Direction direction) { return direction == Direction::kOut ? out_ : in_; }

  Result<void> Collect(Direction direction, const core::TensorView& view, uint64_t begin_bytes,
                       std::span<std::byte> host) {
    const bool contiguous = core::IsContiguous(view.shape, view.strides);
    // The collected bytes may not fit into a buffer. The cuts are multiples of every unit.
    while (!host.empty()) {
      const uint64_t length_bytes = std::min<uint64_t>(host.size(), kBufferBytes / 2);
      BufferedCopy copy{.length_bytes = length_bytes, .host = host.data()};
      if (contiguous) {
        copy.device = AsDevice(view.data) + begin_bytes;
        CAIRN_TRY(Add(direction, copy));
      } else {
        CAIRN_TRY_ASSIGN(const StridedCopyJob job,
                         MakeStridedJob(view, begin_bytes, length_bytes,
                                        reinterpret_cast<uintptr_t>(host.data()) % kHostAlignment,
                                        direction == Direction::kIn));
        copy.strided = 0;
        if (!Batch(direction).HasRoomFor(copy)) CAIRN_TRY(Send(direction));
        Batch(direction).AddStrided(copy, job);
      }
      begin_bytes += length_bytes;
      host = host.subspan(length_bytes);
    }
    return {};
  }

  Result<void> Add(Direction direction, const BufferedCopy& copy) {
    if (!Batch(direction).HasRoomFor(copy)) CAIRN_TRY(Send(direction));
    Batch(direction).Add(copy);
    return {};
  }

  /// Copies over the bus without a buffer.
  Result<void> CopyDirectly(Direction direction, unsigned char* device_bytes, std::byte* host,
                            uint64_t length_bytes) {
    CAIRN_TRY(SendWithin());
    const DeviceScope scope(device());
    CAIRN_TRY(OrderCopyAfterPack());
    if (direction == Direction::kOut) {
      return Check(
          cudaMemcpyAsync(host, device_bytes, length_bytes, cudaMemcpyDeviceToHost, copy_.get()),
          "copying from the GPU");
    }
    copy_is_ahead_ = true;
    return Check(
        cudaMemcpyAsync(device_bytes, host, length_bytes, cudaMemcpyHostToDevice, copy_.get()),
        "copying to the GPU");
  }

  /// Returns the next buffer; waits until its last use is done.
  Result<Buffer*> TakeBuffer() {
    Buffer& buffer = buffers_[next_buffer_];
    next_buffer_ = (next_buffer_ + 1) % buffers_.size();
    if (buffer.used) CAIRN_TRY(buffer.done.Wait());
    CAIRN_TRY(heap_->Grow(buffer.bytes, kBufferBytes));
    CAIRN_TRY(heap_->Grow(buffer.jobs, kMaxJobs * sizeof(CopyJob)));
    CAIRN_TRY(buffer.host_jobs.Grow(kMaxJobs * sizeof(CopyJob)));
    buffer.used = true;
    return &buffer;
  }

  /// Copies the first `count` jobs of the buffer's table to the device.
  Result<void> UploadJobs(const Buffer& buffer, size_t count, const Stream& stream) const {
    if (count == 0) return {};
    return Check(cudaMemcpyAsync(buffer.jobs.data(), buffer.host_jobs.data(),
                                 count * sizeof(CopyJob), cudaMemcpyHostToDevice, stream.get()),
                 "copying the table of copy jobs to the GPU");
  }
  Result<void> LaunchJobs(const Buffer& buffer, size_t count) const {
    return Check(LaunchCopies(buffer.jobs.As<CopyJob>(), static_cast<uint32_t>(count),
                              heap_->multiprocessors(), pack_.get()),
                 "copying on the GPU");
  }

  /// Sets the buffer's table to the contiguous copies of a batch. Returns their number.
  static size_t FillTable(Direction direction, const CopyBatch& batch, const BatchLayout& layout,
                          const Buffer& buffer) {
    const std::span<CopyJob> table = buffer.table();
    size_t count = 0;
    for (size_t i = 0; i < batch.copies().size(); ++i) {
      const BufferedCopy& copy = batch.copies()[i];
      if (copy.strided) continue;
      unsigned char* const packed = buffer.bytes.As<unsigned char>() + layout.offsets_bytes[i];
      for (uint64_t at = 0; at < copy.length_bytes; at += kJobBytes) {
        unsigned char* const tensor = copy.device == nullptr ? nullptr : copy.device + at;
        const bool is_out = direction == Direction::kOut;
        table[count++] = {.source = is_out ? tensor : packed + at,
                          .target = is_out ? packed + at : tensor,
                          .length_bytes = std::min(kJobBytes, copy.length_bytes - at)};
      }
    }
    return count;
  }

  /// Launches the kernels that pack (kOut) or unpack (kIn) `batch`.
  Result<void> Launch(const CopyBatch& batch, const BatchLayout& layout, const Buffer& buffer,
                      size_t job_count) const {
    CAIRN_TRY(LaunchJobs(buffer, job_count));
    for (size_t i = 0; i < batch.copies().size(); ++i) {
      if (!batch.copies()[i].strided) continue;
      StridedCopyJob job = batch.strided()[*batch.copies()[i].strided];
      job.packed = buffer.bytes.As<unsigned char>() + layout.offsets_bytes[i];
      CAIRN_TRY(Check(LaunchStrided(job, heap_->multiprocessors(), pack_.get()),
                      "packing a strided tensor on the GPU"));
    }
    return {};
  }

  Result<void> Send(Direction direction) {
    if (Batch(direction).empty()) return {};
    CAIRN_TRY(SendWithin());
    const DeviceScope scope(device());
    const CopyBatch sent = std::exchange(Batch(direction), {});
    if (sent.IsFewRanges()) {
      for (const BufferedCopy& copy : sent.copies()) {
        if (copy.device == nullptr) {
          std::memset(copy.host, 0, copy.length_bytes);
        } else {
          CAIRN_TRY(CopyDirectly(direction, copy.device, copy.host, copy.length_bytes));
        }
      }
      return {};
    }
    const BatchLayout layout = sent.LayOut(direction, join_host_ranges_);
    CAIRN_TRY_ASSIGN(Buffer* const buffer, TakeBuffer());
    const size_t job_count = FillTable(direction, sent, layout, *buffer);
    if (direction == Direction::kOut) {
      CAIRN_TRY(OrderPackAfterCopy());
      CAIRN_TRY(UploadJobs(*buffer, job_count, pack_));  // another engine copies the tensors
      CAIRN_TRY(Launch(sent, layout, *buffer, job_count));
      CAIRN_TRY(Order(pack_, copy_));
      pack_is_ahead_ = false;
      for (const BatchLayout::HostRange& range : layout.host_ranges) {
        CAIRN_TRY(Check(cudaMemcpyAsync(range.host, buffer->bytes.data() + range.offset_bytes,
                                        range.length_bytes, cudaMemcpyDeviceToHost, copy_.get()),
                        "copying packed tensors from the GPU"));
      }
      return buffer->done.Record(copy_.get());
    }
    // On the stream of the tensors: an engine that copies takes long to change the stream.
    CAIRN_TRY(UploadJobs(*buffer, job_count, copy_));
    for (const BatchLayout::HostRange& range : layout.host_ranges) {
      CAIRN_TRY(Check(cudaMemcpyAsync(buffer->bytes.data() + range.offset_bytes, range.host,
                                      range.length_bytes, cudaMemcpyHostToDevice, copy_.get()),
                      "copying packed tensors to the GPU"));
    }
    CAIRN_TRY(Order(copy_, pack_));
    copy_is_ahead_ = false;
    CAIRN_TRY(Launch(sent, layout, *buffer, job_count));
    pack_is_ahead_ = true;
    return buffer->done.Record(pack_.get());
  }

  Result<void> CopyWithin(const core::TensorView& view, uint64_t begin_bytes,
                          std::span<unsigned char> packed, bool unpack) {
    if (packed.empty()) return {};
    CAIRN_TRY(Send(Direction::kIn));  // it may write what is read here
    const DeviceScope scope(device());
    CAIRN_TRY(OrderPackAfterCopy());
    const bool contiguous = core::IsContiguous(view.shape, view.strides);
    unsigned char* const tensor = AsDevice(view.data) + begin_bytes;
    unsigned char* const source = unpack ? packed.data() : tensor;
    unsigned char* const target = unpack ? tensor : packed.data();
    if (contiguous && packed.size() < kDirectBytes) {
      return AddWithin(unpack, source, target, packed.size());
    }
    CAIRN_TRY(SendWithin());
    pack_is_ahead_ = true;
    if (!contiguous) {
      return EnqueueStridedCopy(view, begin_bytes, packed, unpack, heap_->multiprocessors(),
                                pack_.get());
    }
    return Check(
        cudaMemcpyAsync(target, source, packed.size(), cudaMemcpyDeviceToDevice, pack_.get()),
        "copying on the GPU");
  }

  /// Collects a small copy within the device; SendWithin launches all of them together.
  Result<void> AddWithin(bool unpack, const unsigned char* source, unsigned char* target,
                         uint64_t length_bytes) {
    // An unpack may read what a pack writes, so the two are never in one launch.
    if (within_unpacks_ != unpack) CAIRN_TRY(SendWithin());
    within_unpacks_ = unpack;
    if (within_.size() + DivCeil(length_bytes, kJobBytes) > kMaxJobs) CAIRN_TRY(SendWithin());
    for (uint64_t at = 0; at < length_bytes; at += kJobBytes) {
      within_.push_back({.source = source + at,
                         .target = target + at,
                         .length_bytes = std::min(kJobBytes, length_bytes - at)});
    }
    return {};
  }

  Result<void> SendWithin() {
    if (within_.empty()) return {};
    const DeviceScope scope(device());
    const std::vector<CopyJob> jobs = std::exchange(within_, {});
    CAIRN_TRY_ASSIGN(Buffer* const buffer, TakeBuffer());
    std::ranges::copy(jobs, buffer->table().begin());
    CAIRN_TRY(UploadJobs(*buffer, jobs.size(), pack_));
    CAIRN_TRY(LaunchJobs(*buffer, jobs.size()));
    pack_is_ahead_ = true;
    return buffer->done.Record(pack_.get());
  }

  /// Makes later work of `second` run after all work that `first` contains now.
  static Result<void> Order(const Stream& first, const Stream& second) {
    CAIRN_TRY_ASSIGN(const Event now, Event::Make());
    CAIRN_TRY(now.Record(first.get()));
    return second.WaitFor(now);
  }
  /// Orders one stream of the pair after the other, if that has work it was not ordered after.
  Result<void> OrderCopyAfterPack() {
    return std::exchange(pack_is_ahead_, false) ? Order(pack_, copy_) : Result<void>();
  }
  Result<void> OrderPackAfterCopy() {
    return std::exchange(copy_is_ahead_, false) ? Order(copy_, pack_) : Result<void>();
  }

  const std::shared_ptr<const DeviceHeap> heap_;  // shared with the memory that it has allocated
  Stream copy_;
  Stream pack_;
  Stream digest_;               // the host waits for its work, so nothing else has to
  bool pack_is_ahead_ = false;  // pack_ has work that copy_ was not ordered after
  bool copy_is_ahead_ = false;  // copy_ has copied in bytes that pack_ was not ordered after
  bool join_host_ranges_ = false;
  CopyBatch out_;
  CopyBatch in_;
  std::vector<CopyJob> within_;  // all from Pack, or all from Unpack
  bool within_unpacks_ = false;
  std::array<Buffer, 3> buffers_;  // one is being filled, one is packed, one crosses the bus
  size_t next_buffer_ = 0;
  PageDigester digester_{heap_.get(), &digest_};
};

}  // namespace

Result<std::unique_ptr<core::DeviceQueue>> MakeQueue(std::shared_ptr<const DeviceHeap> heap) {
  auto queue = std::make_unique<CudaQueue>(std::move(heap));
  CAIRN_TRY(queue->Open());
  return queue;
}

}  // namespace cairn::cuda::internal
