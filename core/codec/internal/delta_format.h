#pragma once
/// The layout of a delta: what one chunk contains relative to an earlier version of the same chunk
/// (docs/format/delta.md). `DeltaEncoder` writes it and `Delta` reads it.
///
/// Threads: all functions here are pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv/base/digest.h"

namespace cairn::core::internal {

inline constexpr std::string_view kDeltaMagic = "CDLT";
inline constexpr uint8_t kDeltaVersion = 1;
/// The largest chunk that can have a delta; lengths and positions in streams are u32.
inline constexpr uint64_t kMaxDeltaChunkBytes = 1ull << 30;

/// Where the page digests are, so that they can be read without the rest: a u64 for each page.
inline constexpr uint64_t kDeltaPageDigestsOffset = 16;

/// The streams, in the order of the file. The planes of wide values follow: one stream for each
/// byte of an element.
enum class DeltaStream : uint8_t {
  kPages = 0,   // the page table
  kGaps = 1,    // one or more bytes per sparse element
  kSparse = 2,  // symbols of sparse elements, four per byte
  kDense = 3,   // symbols of dense elements, four per byte
  kValues = 4,  // one byte per symbol kLargeValue, of the sparse and then the dense ones of a page
  kRaw = 5,     // bytes of raw pages
};
inline constexpr uint32_t kFixedStreamCount = 6;
constexpr uint32_t DeltaStreamCount(uint32_t element_bytes) {
  return kFixedStreamCount + element_bytes;
}
/// A directory entry has the length of the stream and its stored length, both u32. They are equal
/// if the stream is not compressed.
inline constexpr uint64_t kStreamEntryBytes = 8;
constexpr uint64_t DeltaDirectoryOffset(uint64_t page_count) {
  return kDeltaPageDigestsOffset + page_count * 8;
}
constexpr uint64_t DeltaStreamsOffset(uint64_t page_count, uint32_t element_bytes) {
  return DeltaDirectoryOffset(page_count) + kStreamEntryBytes * DeltaStreamCount(element_bytes);
}

/// The entry of the page table for a page: in the table, five columns of one byte per page.
struct DeltaPage {
  /// Elements whose value in the earlier version is small are dense: each has a value in the
  /// delta, 0 if it is unchanged. All other elements are sparse: only changed ones are in the
  /// delta, with a gap and a value. 0: no element is dense.
  uint8_t threshold = 0;
  uint16_t sparse_count = 0;  // number of elements that changed
  uint16_t dense_count = 0;   // number of elements, changed or not
};
inline constexpr uint64_t kDeltaPageBytes = 5;
/// The threshold of a page whose bytes are stored as they are.
inline constexpr uint8_t kRawPage = 255;
/// The threshold of a page all of whose elements are in the planes, each rotated by RotateUp.
inline constexpr uint8_t kPlanesPage = 254;
/// The largest threshold of other pages.
inline constexpr uint8_t kMaxThreshold = 253;

/// An element x is dense if `(x << 1) modulo 2^n` is less than `threshold << (n - 8)`. The shift
/// removes the sign of a floating-point number; for bfloat16 and float32, 8 bits of exponent
/// remain at the top, so that an element is dense if it is below a power of two. An optimizer moves
/// all elements by about the same distance, which changes nearly all of these and few others.
template <typename Unsigned>
constexpr bool IsDense(Unsigned element, uint8_t threshold) {
  return static_cast<Unsigned>(element << 1) <
         static_cast<Unsigned>(Unsigned{threshold} << (8 * sizeof(Unsigned) - 8));
}

/// A gap is the number of elements between two sparse elements that changed; the first gap of a
/// page begins at element 0. This byte skips 255 elements, and the gap continues.
inline constexpr uint8_t kGapSkip = 255;
/// The value of a dense element is its difference to the earlier version, mapped by ZigZag. The
/// value of a sparse element, whose difference is never 0, is one less. Values below 3 are symbols.
/// This symbol replaces a larger value; the value less 3 is in the stream kValues.
inline constexpr uint8_t kLargeValue = 3;
/// This byte replaces a value in that stream that is 255 or more; the value is in the planes, and
/// nothing is subtracted from it.
inline constexpr uint8_t kWideValue = 255;
/// The number of symbols in a byte. The first one is in the lowest bits. The symbols of all pages
/// of a chunk are packed together.
inline constexpr uint32_t kSymbolsPerByte = 4;

/// Maps the differences 0, -1, 1, -2, 2, ... (modulo 2^n) to 0, 1, 2, 3, 4, ...
template <typename Unsigned>
constexpr Unsigned ZigZag(Unsigned difference) {
  constexpr int kTopBit = 8 * sizeof(Unsigned) - 1;
  const auto sign = static_cast<Unsigned>(-static_cast<Unsigned>(difference >> kTopBit));
  return static_cast<Unsigned>(static_cast<Unsigned>(difference << 1) ^ sign);
}
template <typename Unsigned>
constexpr Unsigned UnZigZag(Unsigned value) {
  return static_cast<Unsigned>(static_cast<Unsigned>(value >> 1) ^
                               static_cast<Unsigned>(-static_cast<Unsigned>(value & 1)));
}

/// Moves the sign of a floating-point number to the lowest bit, so that its highest byte is, or
/// begins with, the exponent.
template <typename Unsigned>
constexpr Unsigned RotateUp(Unsigned element) {
  constexpr int kTopBit = 8 * sizeof(Unsigned) - 1;
  return static_cast<Unsigned>(static_cast<Unsigned>(element << 1) | (element >> kTopBit));
}
template <typename Unsigned>
constexpr Unsigned RotateDown(Unsigned rotated) {
  constexpr int kTopBit = 8 * sizeof(Unsigned) - 1;
  return static_cast<Unsigned>(static_cast<Unsigned>(rotated << kTopBit) | (rotated >> 1));
}

/// Returns the size of the elements that a delta of a chunk uses. Elements of 16 bytes are pairs,
/// and a chunk that is not a multiple of its elements consists of bytes.
constexpr uint32_t DeltaElementBytes(uint32_t element_bytes, uint64_t chunk_bytes) {
  const uint32_t bytes = element_bytes == 16 ? 8 : element_bytes;
  const bool is_known = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
  return is_known && chunk_bytes % bytes == 0 ? bytes : 1;
}

/// Returns the length of page `page` of a chunk.
constexpr uint64_t DeltaPageLength(uint64_t page, uint64_t chunk_bytes) {
  const uint64_t begin = page * kv::kPageBytes;
  return chunk_bytes - begin < kv::kPageBytes ? chunk_bytes - begin : kv::kPageBytes;
}

/// Calls `call` with a zero of the unsigned type that has `element_bytes`. Requires 1, 2, 4 or 8.
template <typename Call>
auto WithElementType(uint32_t element_bytes, Call&& call) {
  switch (element_bytes) {
    case 2:
      return call(uint16_t{0});
    case 4:
      return call(uint32_t{0});
    case 8:
      return call(uint64_t{0});
    default:
      return call(uint8_t{0});
  }
}

}  // namespace cairn::core::internal
