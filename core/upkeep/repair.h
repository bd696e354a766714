#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Replaces damaged payload by good copies of the same bytes, found by their digests.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "kv/base/error.h"

namespace cairn::core {

struct RepairOptions {
  bool dry_run = false;  // only reports what can be repaired
  /// Progress of the verification, which reads the complete store.
  Progress progress;
  Progress record_progress;  // progress of its check of records
  Progress write_progress;   // payload that was written
};

struct RepairReport {
  uint64_t found = 0;            // problems that the verification has found
  uint64_t damaged_chunks = 0;   // chunks whose bytes do not match their records
  uint64_t repaired_chunks = 0;  // chunks of these whose bytes were found elsewhere
  uint64_t moved_chunks = 0;     // good ones in damaged segments
  uint64_t written_bytes = 0;    // payload, or what would be written
  uint64_t rewritten_steps = 0;  // steps whose records now refer to the new places
  /// Remaining damage: chunks without a good copy, and other objects.
  std::vector<Error> remaining;
};

/// Verifies `store`, and writes what steps use of damaged segments to new ones, with their damaged
/// pages replaced: by a page with the same digest of a chunk with the same key, or by a page of a
/// chunk with the same digest, in any step of `store` or of `sources`. Chunks with deltas keep
/// them. A chunk with a page that is not found is written in full, without deltas, if a chunk with
/// its digest is found. Steps keep their contents; one commit changes where their bytes are. Chunks
/// that are found nowhere remain where they are, and reads continue to refuse them. Memory: two
/// chunks, the records of the chunks in damaged segments, and 200 to 500 bytes for each damaged
/// page.
///
/// kFailedPrecondition: `store` is open for reading only, and `dry_run` is not set. kCancelled: one
/// of the functions in `options` asked to stop. kUnimplemented: a newer Cairn has written a part of
/// `store`. Other errors: the store cannot be read or written at all. After an error, the store is
/// as it was.
Result<RepairReport> Repair(CheckpointStore& store,
                            std::span<const std::unique_ptr<CheckpointStore>> sources,
                            const RepairOptions& options = {});

}  // namespace cairn::core
