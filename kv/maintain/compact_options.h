#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Options and reports of compactions (kv/compact.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/read/snapshot.h"

namespace cairn::kv {

/// Reads a chunk that has deltas into `bytes`, which has its length.
using DecodeChunkCallback = std::function<Result<void>(
    const std::shared_ptr<const Snapshot>& snapshot, std::string_view key,
    const ChunkExtents& extents, std::span<std::byte> bytes)>;

/// Returns `bytes` as a delta of zeros that is clearly shorter, or nothing. Elements have
/// `element_bytes`; `page_digests` are the page digests of `bytes`. Called on several threads.
using CompressCallback = std::function<std::optional<std::vector<std::byte>>(
    std::span<const std::byte> bytes, uint32_t element_bytes,
    std::span<const uint64_t> page_digests)>;

struct CompactOptions {
  /// A segment is rewritten if no step uses more than this part of its file. From 0 to 1.
  double max_dead = 0.15;
  uint64_t max_bytes_per_second = 0;  // limit of the payload; 0: no limit
  /// Commits each time that this number of bytes was moved, so that little is lost if the process
  /// is killed, and the store needs little space in addition.
  uint64_t commit_bytes = uint64_t{16} << 30;
  bool dry_run = false;  // only report
  /// Called between reads, and while the compaction waits, with the payload that was moved and that
  /// is known to have to be moved. Returns false to stop: what was committed remains.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress;
  /// If set, a chunk of at most 64 MiB with deltas is written without them, if its earlier version
  /// is in a segment that is rewritten and nothing else uses that version.
  DecodeChunkCallback decode;
  /// Also rewrites the segments of such earlier versions that are not mostly unused.
  bool fold_all = false;
  /// If set, also rewrites segments that contain chunks which can be compressed: contiguous ones
  /// without deltas, of 4 KiB to 64 MiB, that no other chunk uses a part of.
  CompressCallback compress;
};

struct CompactReport {
  uint64_t live_bytes = 0;         // payload that steps use, each byte once; before the compaction
  uint64_t segment_bytes = 0;      // length of all segments before the compaction
  uint64_t old_segments = 0;       // segments that were rewritten, or would be
  uint64_t old_bytes = 0;          // their length
  uint64_t moved_bytes = 0;        // their payload that steps use
  uint64_t new_segments = 0;       // segments that were written
  uint64_t new_bytes = 0;          // their length
  uint64_t folded_chunks = 0;      // chunks that no longer have deltas
  uint64_t compressed_chunks = 0;  // chunks that were compressed
  /// Length of the objects, also of earlier changes, that no step uses and that a later change, or
  /// the close of a store, removes after the grace period.
  uint64_t waiting_bytes = 0;
  uint64_t rewritten_steps = 0;  // steps with changed records; a step may count several times
};

}  // namespace cairn::kv
