#pragma once
/// Copies a chunk over an earlier version of it, and finds out in the same pass what has changed.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/codec/internal/delta_encoder.h"
#include "core/save/internal/save_plan.h"
#include "kv/base/digest.h"

namespace cairn::core::internal {

/// Memory of one thread.
struct StagedDeltaScratch {
  DeltaEncoder encoder;
  std::vector<std::byte> page = std::vector<std::byte>(kv::kPageBytes);
};

/// Copies `bytes` to `staged`, which has the same length and contains an earlier version.
///
/// If that version has the digest `base`, and a delta pays off, returns the delta and the page
/// digests of `bytes`. Otherwise returns no delta, and the page digests unless it became clear
/// early that no delta pays off. The result belongs to one value of each page, even if other
/// threads write to `bytes`. Cost: reads both versions once, and digests and copies the pages that
/// changed twice. `element_bytes` is the tensor's element size. Threads: any, each with its own
/// `scratch`.
PlannedShard::ChunkPages CopyAndEncode(std::span<const std::byte> bytes,
                                       std::span<std::byte> staged, const kv::Digest& base,
                                       uint32_t element_bytes, StagedDeltaScratch& scratch);

}  // namespace cairn::core::internal
