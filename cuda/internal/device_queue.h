#pragma once
/// Copies to and from one device, over two streams and bounded buffers in device memory.
///
/// The copy stream carries what crosses the bus, and the pack stream the kernels, so that packing
/// and copying overlap; events order the two where one depends on the other. Large contiguous
/// copies cross the bus directly. Small and strided ones are collected. On the way out, one kernel
/// packs them into a buffer in device memory, from which each contiguous range of host memory
/// crosses as one copy; on the way in, the ranges are copied to the buffer first and then unpacked.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/copy_batch.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/device_job.h"
#include "cuda/internal/page_digester.h"
#include "cuda/internal/stream.h"
#include "kv/base/mutex.h"

namespace cairn::cuda::internal {

/// The queue of core on CUDA. Device memory: three buffers of 16 MiB, and what PageDigester
/// needs. Page-locked host memory: the tables of copy jobs. Allocated at first use and kept until
/// the destructor.
///
/// Threads: one at a time, except that Passed and Await may be called concurrently with any other
/// member.
class CudaQueue final : public core::DeviceQueue {
 public:
  /// kResourceExhausted, kUnavailable: the streams or events cannot be created.
  static Result<std::unique_ptr<CudaQueue>> Make(std::shared_ptr<DeviceHeap> heap);
  ~CudaQueue() override;

  int device() const override { return heap_->device(); }
  Result<void> WaitForStream(void* stream) override;
  Result<void> CopyOut(const core::TensorView& source, uint64_t begin_bytes,
                       std::span<std::byte> target) override;
  Result<void> ZeroOut(std::span<std::byte> target) override;
  void JoinHostRanges(bool join) override { join_host_ranges_ = join; }
  Result<void> CopyIn(std::span<const std::byte> source, const core::TensorTarget& target,
                      uint64_t begin_bytes) override;
  Result<void> Pack(const core::TensorView& source, uint64_t begin_bytes, uint64_t count,
                    std::byte* target) override;
  Result<void> Unpack(const std::byte* source, uint64_t count, const core::TensorTarget& target,
                      uint64_t begin_bytes) override;
  void Reset() override;
  Result<Mark> Flush() override;
  Result<bool> Passed(Mark mark) override;
  Result<void> Await(Mark mark) override;
  Result<std::shared_ptr<const core::DeviceFence>> Fence() override;
  Result<Digests> Digest(std::span<const core::DigestJob> jobs,
                         const core::DevicePageDigests* base) override;
  Result<std::vector<uint64_t>> FetchPageDigests(const core::DevicePageDigests& page_digests,
                                                 std::span<const PageRange> ranges) override;

 private:
  /// A buffer in device memory, with the table of the copies from or to it.
  struct Buffer {
    DeviceBuffer bytes;
    DeviceBuffer jobs;
    PinnedBuffer host_jobs;
    Event done;
    bool used = false;
  };
  explicit CudaQueue(std::shared_ptr<DeviceHeap> heap) : heap_(std::move(heap)) {}

  /// True if a copy over the bus goes through a buffer.
  bool IsPacked(uint64_t length_bytes, std::span<const uint64_t> shape,
                std::span<const uint64_t> strides) const;
  Result<void> Collect(Direction direction, const core::TensorView& view, uint64_t begin_bytes,
                       std::span<std::byte> host);
  Result<void> Add(Direction direction, const BufferedCopy& copy);
  Result<void> Send(Direction direction);
  /// Returns the next buffer; waits until its last use is done.
  Result<Buffer*> TakeBuffer();
  /// Sends a batch without packing it.
  Result<void> SendDirectly(Direction direction, const CopyBatch& batch);
  /// Copies the table of a batch's contiguous copies to the buffer. Returns their number.
  Result<uint32_t> UploadJobs(Direction direction, const CopyBatch& batch,
                              const BatchLayout& layout, const Buffer& buffer);
  /// Launches the kernels that pack (kOut) or unpack (kIn) `batch`.
  Result<void> Launch(Direction direction, const CopyBatch& batch, const BatchLayout& layout,
                      const Buffer& buffer, uint32_t job_count);
  Result<void> CopyWithin(const core::TensorView& view, uint64_t begin_bytes,
                          std::span<unsigned char> packed, bool unpack);
  /// Collects a small copy within the device; SendWithin launches all of them together.
  Result<void> AddWithin(bool unpack, const unsigned char* source, unsigned char* target,
                         uint64_t length_bytes);
  Result<void> SendWithin();
  /// Makes later work of `second` run after all work that `first` contains now.
  Result<void> Order(const Stream& first, const Stream& second);
  /// Orders one stream of the pair after the other, if that has work it was not ordered after.
  Result<void> OrderCopyAfterPack();
  Result<void> OrderPackAfterCopy();

  const std::shared_ptr<DeviceHeap> heap_;  // shared with its buffers, which page digests may keep
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
  std::vector<Buffer> buffers_;
  size_t next_buffer_ = 0;
  PageDigester digester_{heap_.get(), &digest_};

  Mutex marks_mutex_;
  Mark next_mark_ CAIRN_GUARDED_BY(marks_mutex_) = 1;
  // The events are shared with the threads that wait for them.
  std::deque<std::pair<Mark, std::shared_ptr<const Event>>> marks_ CAIRN_GUARDED_BY(marks_mutex_);
};

}  // namespace cairn::cuda::internal
