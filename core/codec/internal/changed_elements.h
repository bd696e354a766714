#pragma once
/// Finds the elements of a page that differ from an earlier version, and the dense ones
/// (delta_format.h), with vector instructions that are chosen at run time.
///
/// Threads: all functions here are pure.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/base/digest.h"

namespace cairn::core::internal {

/// The positions of some elements of a page, ascending.
struct ElementList {
  /// With room for a vector after the last position.
  std::array<uint16_t, kv::kPageBytes + 64> positions;
  uint32_t count = 0;

  std::span<const uint16_t> span() const { return std::span(positions).first(count); }
  void SetEnd(const uint16_t* end) { count = static_cast<uint32_t>(end - positions.data()); }
};

struct PageElements {
  ElementList sparse;  // changed and not dense
  ElementList dense;
};

/// Lists the elements of `page` that a delta contains. Requires `base.size() == page.size()`, a
/// multiple of `element_bytes` (1, 2, 4 or 8) and at most kPageBytes. No alignment is required.
void FindElements(uint32_t element_bytes, std::span<const std::byte> base,
                  std::span<const std::byte> page, uint8_t threshold, PageElements& found);

/// Lists the dense elements of `base`. Requires a length that is a multiple of `element_bytes`
/// (1, 2, 4 or 8) and at most kPageBytes, and a threshold that is not 0.
void FindDenseElements(uint32_t element_bytes, std::span<const std::byte> base, uint8_t threshold,
                       ElementList& dense);

}  // namespace cairn::core::internal
