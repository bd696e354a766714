#pragma once
/// Copies that go through one buffer in device memory together, and their places in it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/internal/kernels.h"
#include "kv/base/div.h"

namespace cairn::cuda::internal {

/// From the device (kOut) or to it (kIn).
enum class Direction { kOut, kIn };

/// The length of a buffer.
inline constexpr uint64_t kBufferBytes = 16 << 20;
/// Contiguous copies are divided into jobs of this length, each the work of one warp.
inline constexpr uint64_t kJobBytes = 8 << 10;
inline constexpr uint64_t kMaxJobs = 16384;  // per launch

/// A copy that goes through a buffer: contiguous device memory, a range of a strided tensor, or
/// zeros.
struct BufferedCopy {
  unsigned char* device = nullptr;  // null: zeros, or strided
  std::optional<size_t> strided;    // index in CopyBatch::strided()
  uint64_t length_bytes = 0;
  std::byte* host = nullptr;

  uint64_t job_count() const { return strided ? 0 : DivCeil(length_bytes, kJobBytes); }
};

/// The positions of a batch in a buffer.
struct BatchLayout {
  /// A range of host memory that is contiguous in the buffer too, so that it crosses as one copy.
  struct HostRange {
    uint64_t offset_bytes = 0;  // in the buffer
    uint64_t length_bytes = 0;
    std::byte* host = nullptr;
  };
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
  const std::vector<StridedCopyJob>& strided() const { return strided_; }
  /// True if separate copies are faster than one kernel, which has to wait until the training
  /// leaves a multiprocessor: a separate copy takes about two microseconds longer than its bytes, a
  /// kernel waits up to a millisecond while matrices are multiplied.
  bool IsFewRanges() const { return copies_.size() <= 32 && strided_.empty(); }

  /// True if a buffer and its table of jobs have room for one copy more.
  bool HasRoomFor(const BufferedCopy& copy) const {
    return buffer_bytes_ + TakenBytes(copy) <= kBufferBytes &&
           job_count_ + copy.job_count() <= kMaxJobs;
  }
  /// Requires HasRoomFor.
  void Add(const BufferedCopy& copy) {
    copies_.push_back(copy);
    buffer_bytes_ += TakenBytes(copy);
    job_count_ += copy.job_count();
  }
  /// Adds a copy of a strided tensor, and sets its `strided`. Requires HasRoomFor.
  void AddStrided(BufferedCopy copy, const StridedCopyJob& job) {
    copy.strided = strided_.size();
    strided_.push_back(job);
    Add(copy);
  }
  /// If the last copy ends where a direct copy begins, both on the device and on the host, removes
  /// it. Returns its length, by which the direct copy begins earlier. The header of a segment
  /// shifts all chunks relative to the blocks: without this, each block of a large tensor would
  /// begin with a small copy.
  uint64_t TakeBefore(const std::byte* device, const std::byte* host) {
    if (copies_.empty() || reinterpret_cast<uintptr_t>(host) % kJoinedBytes == 0) return 0;
    const BufferedCopy last = copies_.back();
    if (last.device == nullptr ||
        reinterpret_cast<const std::byte*>(last.device) + last.length_bytes != device ||
        last.host + last.length_bytes != host) {
      return 0;
    }
    buffer_bytes_ -= TakenBytes(last);
    job_count_ -= last.job_count();
    copies_.pop_back();
    return last.length_bytes;
  }

  /// Places the copies. With `join`, host memory between two multiples of 2 MiB is one allocation,
  /// and ranges in it that follow each other cross as one.
  BatchLayout LayOut(Direction direction, bool join) const {
    BatchLayout layout;
    layout.offsets_bytes.reserve(copies_.size());
    uint64_t end_bytes = 0;
    for (const BufferedCopy& copy : copies_) {
      std::optional<uint64_t> gap_bytes;
      if (join && !layout.host_ranges.empty()) {
        gap_bytes = GapTo(direction, layout.host_ranges.back(), copy);
      }
      if (gap_bytes) {
        end_bytes += *gap_bytes;
        layout.host_ranges.back().length_bytes += *gap_bytes;
      } else {
        // Equal to the host's address modulo 64, so that what is aligned there is aligned here.
        end_bytes =
            RoundUp(end_bytes, kAlignment) + reinterpret_cast<uintptr_t>(copy.host) % kAlignment;
        layout.host_ranges.push_back(
            {.offset_bytes = end_bytes, .length_bytes = 0, .host = copy.host});
      }
      layout.offsets_bytes.push_back(end_bytes);
      layout.host_ranges.back().length_bytes += copy.length_bytes;
      end_bytes += copy.length_bytes;
    }
    return layout;
  }

 private:
  static constexpr uint64_t kAlignment = 64;
  // Host memory between two multiples of this is one allocation, where copies may be joined.
  static constexpr uint64_t kJoinedBytes = 2 << 20;

  // A range has the alignment of its host memory modulo 64, so no copy takes more than this.
  static uint64_t TakenBytes(const BufferedCopy& copy) {
    return copy.length_bytes + 2 * kAlignment;
  }

  // Returns how many bytes after the end of a range `copy` begins, or nothing if it cannot be a
  // part of the range.
  static std::optional<uint64_t> GapTo(Direction direction, const BatchLayout::HostRange& range,
                                       const BufferedCopy& copy) {
    const std::byte* const end = range.host + range.length_bytes;
    if (copy.host < end) return std::nullopt;
    if (reinterpret_cast<uintptr_t>(copy.host) / kJoinedBytes !=
        reinterpret_cast<uintptr_t>(end - 1) / kJoinedBytes) {
      return std::nullopt;
    }
    const auto gap_bytes = static_cast<uint64_t>(copy.host - end);
    // On the way in, the bytes of a gap are copied too and ignored.
    if (gap_bytes > 0 && (direction == Direction::kOut || gap_bytes >= kAlignment)) {
      return std::nullopt;
    }
    return gap_bytes;
  }

  std::vector<BufferedCopy> copies_;
  std::vector<StridedCopyJob> strided_;
  uint64_t buffer_bytes_ = 0;  // upper bound of what the copies take in a buffer
  uint64_t job_count_ = 0;
};

}  // namespace cairn::cuda::internal
