#pragma once
/// Schedules reads of segments: many ranges, with deep queues and bounded memory. All payload that
/// is read into host memory, and not mapped, is read here, from files and from objects.

#include <functional>
#include <memory>
#include <span>

#include "kv/base/error.h"
#include "kv/base/options.h"
#include "kv/base/read_range.h"
#include "kv/io/block_pool.h"
#include "kv/io/internal/block_io.h"
#include "kv/segment/internal/segment_files.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// The segments of a store.
struct SegmentSource {
  Storage& storage;
  FileQueues& queues;
  /// Threads: called on several threads concurrently.
  std::function<Result<std::shared_ptr<const SegmentFile>>(uint64_t segment_id)> open;
};

/// Reads all `ranges` with at most `threads` threads, including the calling one; see
/// Snapshot::Read. Returns the number of bytes that were read from storage. The first read that
/// fails ends the call; no read is retried here (a storage may retry its requests).
/// kNotFound: an object does not exist.
Result<uint64_t> ReadRanges(std::span<const ReadRange> ranges, const IoOptions& options,
                            uint32_t threads, BlockPool& pool, const SegmentSource& source,
                            const RangeCallback& arrived);

/// Reads extents of zeros (Extent::Zeros), which are in no segment: fills the targets of the ranges
/// `indices` with zeros, or lends zeros, and calls `arrived`, on up to `threads` threads, because
/// the callbacks decompress.
Result<void> ReadZeros(std::span<const ReadRange> ranges, std::span<const size_t> indices,
                       uint32_t threads, const RangeCallback& arrived);

}  // namespace cairn::kv::internal
