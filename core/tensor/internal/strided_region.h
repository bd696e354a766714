#pragma once
/// Strided boxes of a byte-addressed payload, and moving the bytes of any window of it.
///
/// A region says: for every index i of an N-d box, `element_bytes` bytes at payload position
/// base + sum(i * source stride) belong to `target` + sum(i * target stride). Boxes of chunks and
/// strided aliases of a tensor's payload are both regions, so loading needs one algorithm.
/// Threads: everything here is pure; a region is immutable once made.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core::internal {

class StridedRegion {
 public:
  /// `sizes` in elements, strides in bytes, one a dimension. `base_bytes` may be negative when the
  /// region begins before the payload that is looked at. Requires at least one element.
  StridedRegion(std::span<const uint64_t> sizes, std::span<const uint64_t> source_strides_bytes,
                std::span<const uint64_t> target_strides_bytes, uint64_t element_bytes,
                int64_t base_bytes, std::byte* target);

  /// The same region seen from `offset_bytes` further into the payload.
  StridedRegion ShiftedBy(int64_t offset_bytes) const;

  /// First byte of the region and the end of its last, in payload positions.
  int64_t begin_bytes() const { return base_bytes_; }
  int64_t end_bytes() const { return base_bytes_ + extent(0); }

  /// The target memory of payload [0, length_bytes) if the region maps all of it by one run; else
  /// null.
  std::byte* TargetOfRun(uint64_t length_bytes) const;

  /// Calls `touch(begin, end)` for byte ranges that together hold all bytes of the region inside
  /// [0, length_bytes), and, rounded to `page_bytes`, no page that the region does not touch.
  void ForEachTouched(uint64_t length_bytes, uint64_t page_bytes,
                      const std::function<void(uint64_t, uint64_t)>& touch) const;

  /// Copies what the region takes of payload [window_begin_bytes, + window.size()) to the target.
  void CopyFrom(std::span<const std::byte> window, uint64_t window_begin_bytes) const;

 private:
  struct Dim {
    uint64_t size;
    int64_t source_stride;
    int64_t target_stride;
  };
  // Bytes from the first to behind the last byte of dimensions [d, ...).
  int64_t extent(size_t d) const { return extents_[d]; }
  // Indices of dimension d whose sub-blocks at `source` may meet [begin, end).
  std::pair<uint64_t, uint64_t> IndexRange(size_t d, int64_t source, int64_t begin,
                                           int64_t end) const;
  void Touch(size_t d, int64_t source, int64_t end, int64_t page_bytes,
             const std::function<void(uint64_t, uint64_t)>& touch) const;
  struct Window {
    const std::byte* bytes;
    int64_t begin;
    int64_t end;
  };
  void Copy(size_t d, int64_t source, std::byte* target, const Window& window) const;

  std::vector<Dim> dims_;         // without the run; by descending source stride
  std::vector<int64_t> extents_;  // one more than dims_: the last is run_bytes_
  int64_t run_bytes_ = 0;         // contiguous on both sides
  int64_t base_bytes_ = 0;
  std::byte* target_ = nullptr;
};

}  // namespace cairn::core::internal
