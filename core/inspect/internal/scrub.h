#pragma once
/// Reading payload and page digests, and checking them against the records.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/progress.h"
#include "core/step/contents.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"

namespace cairn::core::internal {

/// A payload that chunk records speak of, for ScrubPayload.
struct ScrubItem {
  enum class Part {
    kChunk,   // a chunk in one extent: its payload and page digests
    kRun,     // one of the extents of a chunk, or a part of it: its payload against page digests
    kPageDigests,  // a chunk in several extents: its page digests alone
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
