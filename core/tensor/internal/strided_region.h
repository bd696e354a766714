#pragma once
/// Strided boxes of a byte-addressed payload, and copies between memory and any window of it.
///
/// A region maps payload to memory: for every index i of an n-dimensional box, `element_bytes`
/// bytes at payload offset base + sum(i * source stride) belong to `target` + sum(i * target
/// stride). Boxes of chunks and strided aliases of a tensor's payload are both regions, and so
/// are strided tensors. A region may convert elements on their way to memory. Threads: safe; a
/// region is immutable.

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/tensor/element_cast.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// The elements of a region, and their conversion on the way to memory.
struct RegionElement {
  RegionElement(uint64_t bytes_in)  // NOLINT(google-explicit-constructor)
      : bytes(bytes_in), target_bytes(bytes_in) {}
  RegionElement(uint64_t bytes_in, ElementCast cast_in, uint64_t target_bytes_in)
      : bytes(bytes_in), cast(cast_in), target_bytes(target_bytes_in) {}

  uint64_t bytes;              // in the payload
  ElementCast cast = nullptr;  // null: memory has the same dtype as the payload
  uint64_t target_bytes;       // in memory
};

/// Strides or sizes in elements, as bytes.
inline std::vector<uint64_t> InBytes(std::vector<uint64_t> strides, uint64_t element_bytes) {
  for (uint64_t& stride : strides) stride *= element_bytes;
  return strides;
}

class StridedRegion {
 public:
  /// `sizes` are in elements, strides in bytes. `base_bytes` is negative if the region begins
  /// before the payload. Requires one size and two strides per dimension, and at least one element.
  /// With a cast, target strides are multiples of `element.target_bytes`, and windows contain
  /// complete elements.
  StridedRegion(std::span<const uint64_t> sizes, std::span<const uint64_t> source_strides_bytes,
                std::span<const uint64_t> target_strides_bytes, RegionElement element,
                int64_t base_bytes, std::byte* target);

  /// Returns this region for the payload that begins `offset_bytes` later.
  StridedRegion ShiftedBy(int64_t offset_bytes) const;

  /// The target memory of payload [0, length_bytes) if the region maps all of it to contiguous
  /// memory without a cast, otherwise null.
  std::byte* ContiguousTarget(uint64_t length_bytes) const;

  /// Calls `touch(begin, end)` for byte ranges that together contain all bytes of the region inside
  /// [0, length_bytes) and, rounded to `page_bytes`, no page without such a byte.
  void ForEachTouched(uint64_t length_bytes, uint64_t page_bytes,
                      const std::function<void(uint64_t, uint64_t)>& touch) const;

  /// Copies the bytes of the region that are in `window`, which is the payload from
  /// `window_begin_bytes` on, to the target.
  void CopyFrom(std::span<const std::byte> window, uint64_t window_begin_bytes) const;
  /// Copies these bytes from the target to `window`. Requires that there is no cast.
  void CopyTo(std::span<std::byte> window, uint64_t window_begin_bytes) const;

 private:
  struct Dim {
    uint64_t size;
    int64_t source_stride;
    int64_t target_stride;
  };
  // Bytes from the first byte of dimensions [d, ...) to the end of the last.
  int64_t extent(size_t d) const { return extents_[d]; }
  // Indices of dimension d whose sub-blocks, which begin at `source`, may overlap [begin, end).
  std::pair<uint64_t, uint64_t> IndexRange(size_t d, int64_t source, int64_t begin,
                                           int64_t end) const;
  void Touch(size_t d, int64_t source, int64_t end, int64_t page_bytes,
             const std::function<void(uint64_t, uint64_t)>& touch) const;
  // Calls `move(memory of the run, offset in the run, offset in the window, count)` for the part of
  // each run of dimensions [d, ...) that is in the window, which is the payload [begin, end).
  template <typename Move>
  void ForEachRun(size_t d, int64_t source, std::byte* memory, int64_t begin, int64_t end,
                  const Move& move) const;

  std::vector<Dim> dims_;         // except those in run_bytes_; by descending source stride
  std::vector<int64_t> extents_;  // one more than dims_; the last is run_bytes_
  RegionElement element_;
  int64_t run_bytes_ = 0;  // innermost bytes that are contiguous in payload and memory
  int64_t base_bytes_ = 0;
  std::byte* target_ = nullptr;
};

}  // namespace cairn::core::internal
