#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Collectives on any communicator for ranges whose lengths the receivers do not know, and
/// communicators along dimensions of a mesh.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/tensor/mesh.h"
#include "kv/base/error.h"

namespace cairn::core {

using ByteVector = std::vector<std::byte>;

/// The most that one call receives on one rank, so that a peer that sends a wrong length cannot
/// cause an unbounded allocation.
inline constexpr uint64_t kMaxGatherVBytes = 4ull << 30;

/// These functions call two collectives: they send the lengths first, with an AllGather
/// (BroadcastV: a Broadcast), then the bytes. Require the same `max_bytes` on all ranks. They
/// return the errors of the communicator, and
///   kInvalidArgument: all ranges together are longer than `max_bytes`. This fails on all ranks; no
///   byte was sent, and the communicator remains usable.
///   kResourceExhausted: there is not enough memory for the received bytes, on this rank only; the
///   others fail at their deadline.

/// On every rank, element i of the result is `mine` of rank i.
Result<std::vector<ByteVector>> AllGatherV(Communicator& communicator, ByteView mine,
                                           uint64_t max_bytes = kMaxGatherVBytes);

/// Returns `bytes` of the root on every rank. Other ranks' `bytes` are ignored.
Result<ByteVector> BroadcastV(Communicator& communicator, ByteView bytes, int root,
                              uint64_t max_bytes = kMaxGatherVBytes);

/// Returns a communicator of the ranks whose mesh coordinates equal this rank's except in the
/// dimensions `along`, in the order of their positions. Collective over `communicator`.
/// kInvalidArgument: the mesh does not have exactly the ranks of the communicator, or lacks a
/// dimension of `along`.
Result<std::unique_ptr<Communicator>> SplitAlong(Communicator& communicator, const DeviceMesh& mesh,
                                                 std::span<const size_t> along);

}  // namespace cairn::core
