#pragma once
/// What Cairn asks of an accelerator: bytes brought to and from its memory behind the caller's
/// back, and page digests made where the bytes are.
///
/// core knows no CUDA. The CUDA layer registers itself (cuda/backend.h); without it, and on
/// machines without a GPU, FindDeviceBackend says why there is none, and everything that lies in
/// host memory works as ever.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "kv/error.h"

namespace cairn::core {

/// A stream of the caller's: for CUDA a cudaStream_t, null for the device's default stream.
struct DeviceStream {
  int device = 0;
  void* stream = nullptr;
};

/// Page digests of one call, kept in device memory: 8 bytes for each 64 KiB. Ownership: holds the
/// memory. Threads: immutable.
class DevicePageDigests {
 public:
  virtual ~DevicePageDigests() = default;
  virtual uint64_t page_count() const = 0;
};

/// Payload whose pages are to be digested: a chunk of a tensor in device memory.
struct DigestJob {
  TensorView source;
  uint64_t begin_bytes = 0;  // in the row-major form of `source`
  uint64_t length_bytes = 0;
  /// The same payload's first page among the leaves that it is compared with, or none.
  static constexpr uint64_t kNoBase = UINT64_MAX;
  uint64_t base_page = kNoBase;
};

/// A point in a device's work, kept apart from the queue that made it. Threads: safe.
class DeviceFence {
 public:
  virtual ~DeviceFence() = default;
  /// Waits, on the host.
  virtual Result<void> Await() const = 0;
  /// What the caller's stream gets from here on runs after the point. Does not wait.
  virtual Result<void> MakeStreamWait(void* stream) const = 0;
};

/// Work on one device in an order of its own, beside the caller's streams. Members enqueue and
/// return unless they say that they wait.
///
/// Errors: kResourceExhausted names the budget or the memory that was lacking; kUnavailable
/// that the device has failed. Requires tensors that are in the device's memory: CUDA lets no later
/// call succeed after a wrong address.
/// Threads: one at a time. The destructor waits for what is enqueued.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  virtual int device() const = 0;

  /// What comes from here on runs after all that the caller's stream holds now.
  virtual Result<void> WaitForStream(void* stream) = 0;

  /// Brings bytes [begin, begin + target.size()) of the row-major form of `source`, a tensor in
  /// device memory, to `target`, host memory (page-locked, or the copy is slow and waits). Small
  /// and strided parts are collected and packed on the device; Flush sends what is collected.
  virtual Result<void> CopyOut(const TensorView& source, uint64_t begin_bytes,
                               std::span<std::byte> target) = 0;
  /// `target` becomes zero; what was collected before and after it may then go as one copy.
  virtual Result<void> ZeroOut(std::span<std::byte> target) = 0;
  /// The other way round: `source` becomes bytes [begin_bytes, ...) of the row-major form of
  /// `target`. `source` must stay as it is until the queue has passed the next Flush.
  virtual Result<void> CopyIn(std::span<const std::byte> source, const TensorTarget& target,
                              uint64_t begin_bytes) = 0;
  /// Lets parts that touch in host memory cross the bus as one copy, also over gaps of less than 64
  /// bytes on the way in. Only for memory that is one allocation from each multiple of 2 MiB to the
  /// next, as page-locked blocks are: no copy may span two. Off until asked for.
  virtual void JoinHostRuns(bool join) = 0;
  /// Within the device: `source`'s row-major bytes [begin, begin + count) to `target`, and back.
  /// Small ones go together: of the packs between two flushes, and of the unpacks, none reads or
  /// writes what another one writes.
  virtual Result<void> Pack(const TensorView& source, uint64_t begin_bytes, uint64_t count,
                            std::byte* target) = 0;
  virtual Result<void> Unpack(const std::byte* source, uint64_t count, const TensorTarget& target,
                              uint64_t begin_bytes) = 0;

  /// After an error: drops what was collected and waits for what is enqueued. Marks have passed.
  virtual void Reset() = 0;

  /// A point in this queue's work: after all that came before it.
  using Mark = uint64_t;
  virtual Result<Mark> Flush() = 0;
  virtual Result<bool> Passed(Mark mark) = 0;
  /// Waits, on the host.
  virtual Result<void> Await(Mark mark) = 0;
  /// Flushes. The point behind all that the queue holds now.
  virtual Result<std::shared_ptr<const DeviceFence>> Fence() = 0;

  /// Page digests (kv/digest.h, bit-equal) of all jobs, in their order, each on its own pages.
  /// Waits for the result. `changed` holds a bit for each page, set where there is nothing to
  /// compare with or the digest is another than `base`'s.
  struct Digests {
    std::shared_ptr<const DevicePageDigests> page_digests;
    std::vector<uint64_t> changed;  // bit p % 64 of word p / 64

    bool IsChanged(uint64_t page) const { return changed[page / 64] >> (page % 64) & 1; }
  };
  virtual Result<Digests> Digest(std::span<const DigestJob> jobs, const DevicePageDigests* base) = 0;
  /// Brings digests of pages to the host. Waits.
  struct PageRange {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  virtual Result<std::vector<uint64_t>> FetchPageDigests(const DevicePageDigests& page_digests,
                                                    std::span<const PageRange> ranges) = 0;
};

/// Memory of one device, zeroed never. Ownership: frees it. Threads: immutable.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() const = 0;
  virtual uint64_t length_bytes() const = 0;
};

/// A file that devices write and read themselves, past host memory. Members wait until the bytes
/// are there, and ask that all that was enqueued for the memory before is done.
///
/// Errors: those of file I/O, without the file's name; kUnavailable, too, where the device fails.
/// Threads: safe.
class DeviceFile {
 public:
  virtual ~DeviceFile() = default;
  virtual Result<void> Write(int device, std::span<const std::byte> source,
                             uint64_t offset_bytes) = 0;
  virtual Result<void> Read(int device, std::span<std::byte> target, uint64_t offset_bytes) = 0;
};

/// The accelerators of this process. Threads: all members are safe.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  /// A queue for one user, shared only for its deleter: that gives it back with the buffers that it
  /// has. kInvalidArgument: no such device.
  virtual Result<std::shared_ptr<DeviceQueue>> OpenQueue(int device) = 0;
  /// kResourceExhausted names device and free memory.
  virtual Result<std::unique_ptr<DeviceMemory>> Allocate(int device, uint64_t length_bytes) = 0;
  /// Device memory that an Allocate could get now.
  virtual Result<uint64_t> FreeBytes(int device) = 0;

  /// Page-locks host memory for all devices, so that they copy at the bus's speed and behind the
  /// caller's back; costs about a second for every 1 to 2 GB. kResourceExhausted: the system lets
  /// no more be locked.
  virtual Result<void> Pin(std::span<std::byte> memory) = 0;
  virtual void Unpin(std::span<std::byte> memory) = 0;

  /// `fd`, the file `path`, opened for direct I/O, for as long as the result lives. The first file
  /// of a file system that is to be written has a trial beside it, with a file of its own, which is
  /// read back. kFailedPrecondition, kUnimplemented: why devices cannot reach it, or must not.
  enum class FileUse { kRead, kWrite };
  virtual Result<std::unique_ptr<DeviceFile>> OpenFile(int fd, const std::string& path,
                                                       FileUse use) = 0;
};

/// kFailedPrecondition / kUnimplemented: there is no GPU, or this build has no CUDA layer.
Result<DeviceBackend*> FindDeviceBackend();

/// Called once by the CUDA layer's users, before any FindDeviceBackend; `find` is asked at the
/// first use and its answer kept if it is a backend.
using DeviceBackendFinder = Result<DeviceBackend*> (*)();
void SetDeviceBackend(DeviceBackendFinder find);

}  // namespace cairn::core
