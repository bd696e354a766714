#pragma once
/// Ranges of extents of zeros (Extent::Zeros), which are in no segment.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/base/error.h"
#include "kv/base/read_range.h"

namespace cairn::kv::internal {

/// Fills the targets of the ranges `indices` with zeros, or lends zeros, and calls `arrived`, on up
/// to `threads` threads: the callbacks decompress. Returns the first error of `arrived`.
Result<void> ReadZeros(std::span<const ReadRange> ranges, std::span<const size_t> indices,
                       uint32_t threads, const RangeCallback& arrived);

}  // namespace cairn::kv::internal
