#pragma once
/// Copies that go through one buffer in device memory together, and their places in it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/internal/device_job.h"

namespace cairn::cuda::internal {

/// From the device (kOut) or to it (kIn).
enum class Direction { kOut, kIn };

/// The length of a buffer.
inline constexpr uint64_t kBufferBytes = 16 << 20;
/// Contiguous copies are divided into jobs of this length, each the work of one warp.
inline constexpr uint64_t kJobBytes = 8 << 10;
inline constexpr uint64_t kMaxJobs = 16384;  // per launch
/// A separate copy takes about two microseconds longer than its bytes; a kernel waits up to a
/// millisecond for a multiprocessor while matrices are multiplied.
inline constexpr size_t kFewRanges = 32;

constexpr uint64_t JobCount(uint64_t length_bytes) {
  return (length_bytes + kJobBytes - 1) / kJobBytes;
}

/// A copy that goes through a buffer: contiguous device memory, a range of a strided tensor, or
/// zeros.
struct BufferedCopy {
  enum class Kind { kContiguous, kStrided, kZero } kind = Kind::kContiguous;
  unsigned char* device = nullptr;  // kContiguous: the bytes; kStrided: element 0
  size_t shape = 0;                 // kStrided: index in CopyBatch::shapes()
  uint64_t begin_units = 0;         // kStrided
  uint64_t length_bytes = 0;
  std::byte* host = nullptr;
};

/// A range of host memory that is contiguous in a buffer too, so that it crosses as one copy.
struct HostRange {
  uint64_t offset_bytes = 0;  // in the buffer
  uint64_t length_bytes = 0;
  std::byte* host = nullptr;
};

/// The positions of a batch in a buffer.
struct BatchLayout {
  std::vector<HostRange> host_ranges;
  std::vector<uint64_t> offsets_bytes;  // by copy
};

/// The copies that were collected for the next buffer, all in one direction.
///
/// Threads: one at a time.
class CopyBatch {
 public:
  bool empty() const { return copies_.empty(); }
  const std::vector<BufferedCopy>& copies() const { return copies_; }
  const std::vector<StridedShape>& shapes() const { return shapes_; }
  /// True if separate copies are faster than one kernel, which has to wait until the training
  /// leaves a multiprocessor.
  bool IsFewRanges() const { return copies_.size() <= kFewRanges && shapes_.empty(); }

  /// True if a buffer and its table of jobs have room for one copy more.
  bool HasRoomFor(const BufferedCopy& copy) const;
  /// Requires HasRoomFor.
  void Add(const BufferedCopy& copy);
  /// Adds a copy of a strided tensor, and sets its `shape`. Requires HasRoomFor.
  void AddStrided(BufferedCopy copy, const StridedShape& shape);
  /// If the last copy ends where a direct copy begins, both on the device and on the host, removes
  /// it. Returns its length, by which the direct copy begins earlier.
  uint64_t TakeBefore(const std::byte* device, const std::byte* host);
  /// Places the copies. With `join`, host memory between two multiples of 2 MiB is one allocation,
  /// and ranges in it that follow each other cross as one.
  BatchLayout LayOut(Direction direction, bool join) const;

 private:
  std::vector<BufferedCopy> copies_;
  std::vector<StridedShape> shapes_;
  uint64_t buffer_bytes_ = 0;  // upper bound of what the copies take in a buffer
  uint64_t job_count_ = 0;
};

}  // namespace cairn::cuda::internal
