#pragma once
/// Scrubbing a store: every record decoded and held against the others, every payload byte read.

#include "core/checkpoint_store.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Verify. Goes on after damage; errors are returned only where nothing more
/// can be said (the store cannot be read at all, or the caller cancelled).
Result<uint64_t> RunVerify(const kv::Store& store, std::optional<uint64_t> step,
                           const std::function<void(const kv::Damage&)>& damage,
                           const Progress& progress);

/// A payload that chunk records speak of, for ScrubPayload.
struct ScrubItem {
  enum class Part {
    kChunk,   // a chunk in one extent: its payload and page digests
    kRun,     // one of the extents of a chunk, or a part of it: its payload against page digests
    kLeaves,  // a chunk in several extents: its page digests alone
  };
  uint64_t step = 0;
  std::string fqn;
  ChunkInfo chunk;  // kRun: `extents` is just the run
  Part part = Part::kChunk;
  uint64_t first_page = 0;  // kRun: where it begins in the chunk
};

/// Reads the payload and the stored page digests of every item and checks both against the records.
/// Returns payload bytes read. `items` are best sorted by place. Errors: kCancelled only.
Result<uint64_t> ScrubPayload(const std::shared_ptr<const kv::Snapshot>& snapshot,
                              const std::string& directory, std::span<const ScrubItem> items,
                              const std::function<void(const kv::Damage&)>& damage,
                              const Progress& progress);

}  // namespace cairn::core::internal
