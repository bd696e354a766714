#pragma once
/// Several strided tensors as one stream of bytes, which a rank sends or receives in rounds of one
/// range each.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// The row-major bytes of tensors, one tensor after the other. View: TensorView or TensorTarget.
/// Ownership: borrows the tensors' memory. Threads: any number of threads may call const members
/// concurrently; Add excludes all other calls.
template <typename View>
class TensorStream {
 public:
  /// Requires a dtype and shape that TensorBytes accepts.
  void Add(View view) {
    const uint64_t length_bytes = *TensorBytes(view.dtype, view.shape);
    if (length_bytes == 0) return;
    const bool contiguous = IsContiguous(view.shape, view.strides);
    entries_.push_back({length_bytes_, length_bytes_ + length_bytes, contiguous, std::move(view)});
    length_bytes_ += length_bytes;
  }
  uint64_t length_bytes() const { return length_bytes_; }

  /// The memory of a range of bytes.
  struct Memory {
    decltype(View::data) data = nullptr;  // null if the range is not contiguous in memory
    int device = kHostDevice;             // kHostDevice also if the range is on several devices
  };
  /// Returns the memory of bytes [begin, begin + count). Requires count > 0 and a range inside the
  /// stream.
  Memory MemoryOf(uint64_t begin, uint64_t count) const {
    CAIRN_CHECK(count > 0 && begin + count <= length_bytes_);
    const auto first = EntryAt(begin);
    Memory memory{.device = first->view.device};
    if (begin + count <= first->end) {
      if (first->contiguous) memory.data = first->view.data + (begin - first->begin);
      return memory;
    }
    for (auto entry = first; entry != entries_.end() && entry->begin < begin + count; ++entry) {
      if (entry->view.device != memory.device) memory.device = kHostDevice;
    }
    return memory;
  }

  /// Calls `move(view, offset in view, offset in range, count)` for each tensor that has bytes in
  /// [begin, begin + count).
  template <typename Move>
  void ForEach(uint64_t begin, uint64_t count, const Move& move) const {
    if (count == 0) return;
    const uint64_t end = begin + count;
    for (auto entry = EntryAt(begin); entry != entries_.end() && entry->begin < end; ++entry) {
      const uint64_t from = std::max(begin, entry->begin);
      move(entry->view, from - entry->begin, from - begin, std::min(end, entry->end) - from);
    }
  }

 private:
  struct Entry {
    uint64_t begin = 0;  // offset in the stream, in bytes
    uint64_t end = 0;
    bool contiguous = false;
    View view;
  };
  auto EntryAt(uint64_t begin) const {
    return std::ranges::upper_bound(entries_, begin, {}, &Entry::end);
  }

  std::vector<Entry> entries_;  // ascending by begin, without gaps
  uint64_t length_bytes_ = 0;
};

/// A range of a stream.
struct RoundRange {
  uint64_t begin = 0;
  uint64_t count = 0;
};
/// Returns the range of a stream that round `round` of `rounds` transfers. Every stream is divided
/// evenly among the rounds, so that long and short streams end at the same time. The ranges of one
/// round are in total at most one byte per stream longer than the length of all streams divided by
/// the number of rounds. Requires round < rounds.
inline RoundRange RangeOfRound(uint64_t length_bytes, uint64_t round, uint64_t rounds) {
  CAIRN_CHECK(round < rounds);
  using Wide = unsigned __int128;
  const auto begin = static_cast<uint64_t>(Wide{length_bytes} * round / rounds);
  const auto end = static_cast<uint64_t>(Wide{length_bytes} * (round + 1) / rounds);
  return {begin, end - begin};
}

}  // namespace cairn::core::internal
