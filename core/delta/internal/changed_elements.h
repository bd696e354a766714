#pragma once
/// Finds the elements of a page that differ from those of an earlier version, and the dense ones
/// (delta_format.h), with vector instructions that are chosen at run time.
///
/// Threads: all functions here are pure.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/digest.h"

namespace cairn::core::internal {

/// One bit per element of a page; unused bits of the last word are 0.
using ElementBits = std::array<uint64_t, kv::kPageBytes / 64>;

struct PageElements {
  ElementBits sparse;  // changed and not dense
  ElementBits dense;   // unspecified if the threshold is 0
};

/// Fills the bits of the elements of `page`. Requires `base.size() == page.size()`, a multiple of
/// `element_bytes` (1, 2, 4 or 8) and at most kPageBytes. No alignment is required.
void FindElements(uint32_t element_bytes, std::span<const std::byte> base,
                  std::span<const std::byte> page, uint8_t threshold, PageElements& found);

/// Fills the bits of the dense elements only. Requires the same of `base` as FindElements.
void FindDenseElements(uint32_t element_bytes, std::span<const std::byte> base, uint8_t threshold,
                       ElementBits& dense);

/// The positions of set bits, with room for what ListElements writes after the last one.
using ElementList = std::array<uint16_t, kv::kPageBytes + 64>;

/// Fills `list` with the positions of the bits that are set, ascending, and returns their number.
/// Reads the bits of `element_count` elements.
uint32_t ListElements(const ElementBits& bits, uint64_t element_count, ElementList& list);

}  // namespace cairn::core::internal
