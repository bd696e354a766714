#include "core/tensor/internal/strided_region.h"

#include <algorithm>
#include <cstring>

namespace cairn::core::internal {
namespace {

// memcpy with a size that the compiler knows: the runs of a transposed tensor have one element.
void CopyRun(std::byte* target, const std::byte* source, uint64_t count) {
  switch (count) {
    case 1:
      std::memcpy(target, source, 1);
      break;
    case 2:
      std::memcpy(target, source, 2);
      break;
    case 4:
      std::memcpy(target, source, 4);
      break;
    case 8:
      std::memcpy(target, source, 8);
      break;
    default:
      std::memcpy(target, source, count);
  }
}

}  // namespace

StridedRegion::StridedRegion(std::span<const uint64_t> sizes,
                             std::span<const uint64_t> source_strides_bytes,
                             std::span<const uint64_t> target_strides_bytes, RegionElement element,
                             int64_t base_bytes, std::byte* target)
    : element_(element),
      run_bytes_(static_cast<int64_t>(element.bytes)),
      base_bytes_(base_bytes),
      target_(target) {
  CAIRN_CHECK(source_strides_bytes.size() == sizes.size() &&
              target_strides_bytes.size() == sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    CAIRN_CHECK(sizes[d] > 0);
    if (sizes[d] == 1) continue;
    dims_.push_back({sizes[d], static_cast<int64_t>(source_strides_bytes[d]),
                     static_cast<int64_t>(target_strides_bytes[d])});
  }
  // With descending source strides the payload is visited in ascending order wherever strides nest.
  std::ranges::stable_sort(dims_, std::ranges::greater{}, &Dim::source_stride);
  std::vector<Dim> merged;
  for (const Dim& dim : dims_) {
    const auto size = static_cast<int64_t>(dim.size);
    if (!merged.empty() && merged.back().source_stride == dim.source_stride * size &&
        merged.back().target_stride == dim.target_stride * size) {
      merged.back() = {merged.back().size * dim.size, dim.source_stride, dim.target_stride};
    } else {
      merged.push_back(dim);
    }
  }
  dims_ = std::move(merged);
  if (!dims_.empty() && dims_.back().source_stride == run_bytes_ &&
      dims_.back().target_stride == static_cast<int64_t>(element_.target_bytes)) {
    run_bytes_ *= static_cast<int64_t>(dims_.back().size);
    dims_.pop_back();
  }
  extents_.assign(dims_.size() + 1, run_bytes_);
  for (size_t d = dims_.size(); d-- > 0;) {
    extents_[d] =
        extents_[d + 1] + static_cast<int64_t>(dims_[d].size - 1) * dims_[d].source_stride;
  }
}

StridedRegion StridedRegion::ShiftedBy(int64_t offset_bytes) const {
  StridedRegion shifted = *this;
  shifted.base_bytes_ -= offset_bytes;
  return shifted;
}

std::byte* StridedRegion::ContiguousTarget(uint64_t length_bytes) const {
  if (element_.cast != nullptr || !dims_.empty() || base_bytes_ > 0 ||
      base_bytes_ + run_bytes_ < static_cast<int64_t>(length_bytes)) {
    return nullptr;
  }
  return target_ - base_bytes_;
}

std::pair<uint64_t, uint64_t> StridedRegion::IndexRange(size_t d, int64_t source, int64_t begin,
                                                        int64_t end) const {
  const int64_t stride = dims_[d].source_stride;
  const uint64_t size = dims_[d].size;
  if (stride == 0) return {0, size};
  // Sub-block i covers [source + i * stride, source + i * stride + extent(d + 1)).
  const int64_t before = begin - source - extent(d + 1);
  const uint64_t first = before < 0 ? 0 : static_cast<uint64_t>(before / stride) + 1;
  const int64_t room = end - source;
  const uint64_t last = room <= 0 ? 0 : static_cast<uint64_t>((room - 1) / stride) + 1;
  return {std::min(first, size), std::min(last, size)};
}

void StridedRegion::ForEachTouched(uint64_t length_bytes, uint64_t page_bytes,
                                   const std::function<void(uint64_t, uint64_t)>& touch) const {
  Touch(0, base_bytes_, static_cast<int64_t>(length_bytes), static_cast<int64_t>(page_bytes),
        touch);
}

void StridedRegion::Touch(size_t d, int64_t source, int64_t end, int64_t page_bytes,
                          const std::function<void(uint64_t, uint64_t)>& touch) const {
  if (source >= end || source + extent(d) <= 0) return;
  // Dimension d has the largest stride of the remaining ones: if it is at most a page, every page
  // of the extent is touched.
  if (d == dims_.size() || dims_[d].source_stride <= page_bytes) {
    touch(static_cast<uint64_t>(std::max<int64_t>(source, 0)),
          static_cast<uint64_t>(std::min(source + extent(d), end)));
    return;
  }
  const auto [first, last] = IndexRange(d, source, 0, end);
  for (uint64_t i = first; i < last; ++i) {
    Touch(d + 1, source + static_cast<int64_t>(i) * dims_[d].source_stride, end, page_bytes, touch);
  }
}

template <typename Move>
void StridedRegion::ForEachRun(size_t d, int64_t source, std::byte* memory, int64_t begin,
                               int64_t end, const Move& move) const {
  const int64_t run_bytes = run_bytes_;
  const auto move_run = [&](int64_t run, std::byte* run_memory) {
    const int64_t first = std::max(run, begin);
    const int64_t last = std::min(run + run_bytes, end);
    if (first < last) move(run_memory, first - run, first - begin, last - first);
  };
  if (d == dims_.size()) return move_run(source, memory);
  const Dim dim = dims_[d];
  const auto [first, last] = IndexRange(d, source, begin, end);
  const auto skipped = static_cast<int64_t>(first);
  source += skipped * dim.source_stride;
  memory += skipped * dim.target_stride;
  const bool is_innermost = d + 1 == dims_.size();
  for (uint64_t left = last - std::min(first, last); left > 0; --left) {
    if (!is_innermost) {
      ForEachRun(d + 1, source, memory, begin, end, move);
    } else if (source >= begin && source + run_bytes <= end) [[likely]] {
      move(memory, 0, source - begin, run_bytes);
    } else {
      move_run(source, memory);
    }
    source += dim.source_stride;
    memory += dim.target_stride;
  }
}

// The functions that move a run have copies of pointers, which the bytes that they write cannot
// change, as far as the compiler knows.

void StridedRegion::CopyFrom(std::span<const std::byte> window, uint64_t window_begin_bytes) const {
  const auto begin = static_cast<int64_t>(window_begin_bytes);
  const int64_t end = begin + static_cast<int64_t>(window.size());
  const std::byte* const from = window.data();
  if (element_.cast == nullptr) {
    return ForEachRun(0, base_bytes_, target_, begin, end,
                      [from](std::byte* memory, int64_t in_run, int64_t at, int64_t count) {
                        CopyRun(memory + in_run, from + at, static_cast<uint64_t>(count));
                      });
  }
  ForEachRun(0, base_bytes_, target_, begin, end,
             [&](std::byte* memory, int64_t in_run, int64_t at, int64_t count) {
               const uint64_t element = static_cast<uint64_t>(in_run) / element_.bytes;
               element_.cast(from + at, memory + element * element_.target_bytes,
                             static_cast<uint64_t>(count) / element_.bytes);
             });
}

void StridedRegion::CopyTo(std::span<std::byte> window, uint64_t window_begin_bytes) const {
  CAIRN_CHECK(element_.cast == nullptr);
  const auto begin = static_cast<int64_t>(window_begin_bytes);
  ForEachRun(
      0, base_bytes_, target_, begin, begin + static_cast<int64_t>(window.size()),
      [to = window.data()](const std::byte* memory, int64_t in_run, int64_t at, int64_t count) {
        CopyRun(to + at, memory + in_run, static_cast<uint64_t>(count));
      });
}

}  // namespace cairn::core::internal
