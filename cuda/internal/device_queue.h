#pragma once
/// The way to and from one device: two streams, bounded buffers on the device, marks.
///
/// The copy stream holds what crosses the bus, the pack stream the kernels, so that packing runs
/// beside copying; events order them where one needs the other. Large contiguous parts cross
/// directly. Small and strided ones are collected, packed by one kernel into a buffer on the device
/// and cross as one copy for each run of host memory; the other way round likewise.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "cuda/internal/device_heap.h"
#include "cuda/internal/device_job.h"
#include "cuda/internal/stream.h"

namespace cairn::cuda::internal {

/// Device memory: three buffers of 8 MiB, and what the digests of a call need (8 bytes and a bit a
/// page, 40 bytes a job, 64 MiB where strided tensors are digested). Host memory, page-locked: the
/// tables of the same. Allocated at the first use, kept until the queue goes.
///
/// Threads: as DeviceQueue; Passed and Await may be called beside the other members.
class CudaQueue final : public core::DeviceQueue {
 public:
  static Result<std::unique_ptr<CudaQueue>> Make(std::shared_ptr<DeviceHeap> heap);
  ~CudaQueue() override;

  int device() const override { return heap_->device(); }
  Result<void> WaitForStream(void* stream) override;
  Result<void> CopyOut(const core::TensorView& source, uint64_t begin_bytes,
                       std::span<std::byte> target) override;
  Result<void> ZeroOut(std::span<std::byte> target) override;
  void JoinHostRuns(bool join) override { join_host_runs_ = join; }
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
  /// A part that goes through a buffer: a run of device memory, a range of a strided tensor, or
  /// zeros.
  struct Part {
    enum class Kind { kRun, kStrided, kZero } kind = Kind::kRun;
    unsigned char* device = nullptr;  // kRun: the bytes; kStrided: element 0
    StridedShape shape;               // kStrided
    uint64_t begin_units = 0;         // kStrided
    uint64_t length_bytes = 0;
    std::byte* host = nullptr;
  };
  struct Parts {
    std::vector<Part> list;
    uint64_t buffer_bytes = 0;  // that the list takes of a buffer
    uint64_t job_count = 0;
    bool empty() const { return list.empty(); }
  };
  /// A buffer on the device, with the table of what is copied from or to it.
  struct Buffer {
    DeviceBuffer bytes;
    DeviceBuffer jobs;
    PinnedBuffer host_jobs;
    Event done;
    bool used = false;
  };
  /// Parts of a buffer that are one run of host memory.
  struct Run {
    uint64_t offset_bytes = 0;  // in the buffer
    uint64_t length_bytes = 0;
    std::byte* host = nullptr;
  };
  /// Where parts lie in a buffer, and what the kernels are to do.
  struct Layout {
    std::vector<Run> runs;
    std::vector<uint64_t> offsets_bytes;  // of each part
  };

  explicit CudaQueue(std::shared_ptr<DeviceHeap> heap) : heap_(std::move(heap)) {}

  enum class Direction { kOut, kIn };
  Result<void> Collect(Direction direction, const core::TensorView& view, uint64_t begin_bytes,
                       std::byte* host, uint64_t count);
  Result<void> Add(Direction direction, const Part& part);
  Result<void> Send(Direction direction);
  Layout LayOut(Direction direction, const Parts& parts) const;
  /// How far behind the end of a run a part may begin and still belong to it, or nothing.
  std::optional<uint64_t> GapTo(Direction direction, const Run& run, const Part& part) const;
  /// If the last part that was collected ends where a direct copy begins, on both sides, it goes
  /// along: the copy's start moves back.
  uint64_t TakeBefore(const std::byte* device, const std::byte* host);
  Result<Buffer*> TakeBuffer();
  /// Launches the kernels that pack (kOut) or unpack (kIn) `parts`.
  Result<void> Launch(Direction direction, const Parts& parts, const Layout& layout,
                      const Buffer& buffer);
  Result<void> CopyWithin(const core::TensorView& view, uint64_t begin_bytes, uint64_t count,
                          unsigned char* packed, bool unpack);
  /// A small copy within the device, to go with others in one launch.
  Result<void> AddWithin(bool unpack, const unsigned char* source, unsigned char* target,
                         uint64_t length_bytes);
  Result<void> SendWithin();
  /// What follows on the second stream runs after all that the first holds.
  Result<void> Order(const Stream& first, const Stream& second);
  Result<void> CopyStrided(const core::TensorView& view, uint64_t begin_bytes, uint64_t count,
                           unsigned char* packed, bool unpack);

  /// Tables of one launch of the digest kernel.
  struct DigestTables;
  Result<std::vector<uint64_t>> DigestInto(std::span<const core::DigestJob> jobs,
                                           const core::DevicePageDigests* base, uint64_t page_count,
                                           const DeviceBuffer& page_digests, const DeviceBuffer& changed);
  Result<void> DigestBatch(std::span<const PageJob> jobs, uint64_t page_count,
                           const DigestTables& tables);
  Result<void> DigestStrided(std::span<const core::DigestJob> jobs,
                             std::span<const uint64_t> first_page_digest, const DigestTables& tables);

  const std::shared_ptr<DeviceHeap> heap_;  // shared with its buffers, which leaves may keep
  Stream copy_;
  Stream pack_;
  bool pack_is_ahead_ = false;  // pack_ has work that copy_ has not been ordered behind
  bool copy_is_ahead_ = false;  // copy_ has brought bytes that pack_ has not been ordered behind
  bool join_host_runs_ = false;
  Parts out_;
  Parts in_;
  std::vector<CopyJob> within_;  // collected by Pack, or all by Unpack
  bool within_unpacks_ = false;
  std::vector<Buffer> buffers_;
  size_t next_buffer_ = 0;

  // Digests.
  DeviceBuffer digest_jobs_;
  DeviceBuffer digest_window_;  // strided payload, packed
  PinnedBuffer host_jobs_;
  PinnedBuffer host_results_;

  std::mutex marks_mutex_;
  // Guarded by marks_mutex_:
  Mark next_mark_ = 1;
  std::deque<std::pair<Mark, std::shared_ptr<const Event>>> marks_;  // shared with who waits
};

}  // namespace cairn::cuda::internal
