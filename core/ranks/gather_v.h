#pragma once
/// Collectives over any communicator for ranges whose length the receivers do not know, and
/// communicators along dimensions of a mesh.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/sharding/mesh.h"
#include "kv/error.h"

namespace cairn::core {

using ByteVector = std::vector<std::byte>;

/// The most that one call takes in at one rank, so that a peer that counts wrong cannot make it
/// allocate without bound.
inline constexpr uint64_t kMaxAnyBytes = 4ull << 30;

/// The lengths go first, in an AllGather (a Broadcast for BroadcastV), then the bytes; two
/// collectives in all. Errors are those of the communicator, and
///   kInvalidArgument: all ranges together are longer than `max_bytes`. All ranks give the same
///   limit, so it fails on all of them; no byte was sent, and the communicator stays usable.
///   kResourceExhausted: no memory for what arrives, on this rank only; the others fail at their
///   deadline.

/// At the root element i holds rank i's `mine`; elsewhere the result is empty.
Result<std::vector<ByteVector>> GatherV(Communicator& communicator, ByteView mine, int root,
                                          uint64_t max_bytes = kMaxAnyBytes);

/// Element i holds rank i's `mine`, on every rank.
Result<std::vector<ByteVector>> AllGatherV(Communicator& communicator, ByteView mine,
                                             uint64_t max_bytes = kMaxAnyBytes);

/// `bytes` of the root, on every rank; elsewhere `bytes` is not looked at.
Result<ByteVector> BroadcastV(Communicator& communicator, ByteView bytes, int root,
                                uint64_t max_bytes = kMaxAnyBytes);

/// The ranks that differ from this one in the dimensions `along` of the mesh only, in the order of
/// their places. All ranks of the communicator call it.
/// kInvalidArgument: the mesh does not hold exactly the communicator's ranks, or `along` names a
/// dimension that it does not have.
Result<std::unique_ptr<Communicator>> SplitAlong(Communicator& communicator, const DeviceMesh& mesh,
                                                 std::span<const size_t> along);

/// One communicator for each dimension of the mesh, in their order, of the ranks that differ in it
/// only. All ranks of the communicator call it. Errors as SplitAlong.
Result<std::vector<std::unique_ptr<Communicator>>> SplitAlongEach(Communicator& communicator,
                                                                  const DeviceMesh& mesh);

}  // namespace cairn::core
