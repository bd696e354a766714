#pragma once
/// Splits a load into reads: intersects the requested boxes of tensors with the stored chunks,
/// whose boxes may belong to another mesh.
///
/// 1. Make() checks the requests and groups them by the tensor that holds the bytes: the requested
///    tensor itself, or the owner of an alias.
/// 2. AddReads() visits the chunks of these tensors in key order. Each intersection of a chunk with
///    a requested box is a strided region of the chunk's payload, which is added to the
///    ChunkReader. An alias that differs from its owner is a strided region of the owner's
///    row-major payload instead.
///
/// If shards are loaded, shard_load.cc has determined the boxes. The ChunkReader then divides
/// regions into parts at pages and extents, and kv/ merges parts that are adjacent in a file into
/// one read.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/load/internal/chunk_reader.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/box_index.h"
#include "core/tensor/internal/strided_region.h"

namespace cairn::core::internal {

/// The reads of one load. Ownership: borrows the requests, which must outlive the plan. Threads:
/// one at a time.
class ReadPlan {
 public:
  /// Checks all requests. kNotFound: there is no such tensor. kInvalidArgument: the dtype is not
  /// the stored one and cannot be cast to, the box is not inside the tensor, or the target does not
  /// have the shape of the box, has invalid strides, or has no memory. kDataLoss: a record is
  /// damaged or missing.
  /// `known`: see CheckpointStore::Load.
  static Result<ReadPlan> Make(const StepView& view, std::span<const LoadRequest> requests,
                               std::span<const TensorInfo> known = {});

  /// Bytes of all requests.
  uint64_t total_bytes() const { return total_bytes_; }

  /// Adds what the requests need to the reader, chunk by chunk. Call once. kDataLoss: the chunks do
  /// not cover a request exactly once. kUnimplemented: an alias of a tensor whose chunks are not
  /// consecutive ranges of its row-major bytes. Errors of ChunkReader::Add.
  Result<void> AddReads(const StepView& view, ChunkReader& reader);

 private:
  /// The part of a request in the tensor that holds its bytes.
  struct Want {
    const LoadRequest* request = nullptr;
    size_t owner = 0;                                   // in owners_
    std::unique_ptr<const StridedRegion> alias_region;  // in the owner's payload; null: the box
    RegionElement element = 0;
    uint64_t missing_bytes = 0;  // not planned yet
  };
  static constexpr size_t kFewWants = 8;

  /// Adds what a request needs of `tensor`, whose bytes owner `owner` holds.
  Result<void> AddWant(const LoadRequest& request, const TensorInfo& tensor, size_t owner);
  std::span<Want> WantsOf(size_t owner);
  /// Adds what the requests need of a chunk of owner `i`.
  Result<void> Visit(size_t i, ChunkInfo&& chunk, ChunkReader& reader);
  static Result<void> VisitWant(const TensorInfo& owner, Want& want, ChunkInfo chunk,
                                ChunkReader& reader);
  Result<void> VisitAliases(size_t i, const ChunkInfo& chunk, ChunkReader& reader);
  /// Sets index_ to the requested boxes of owner `i`. Chunks are visited owner by owner.
  void IndexWants(size_t i);
  /// kDataLoss: the chunks did not cover a request.
  Result<void> CheckCovered() const;

  std::vector<TensorInfo> owners_;  // key order
  std::vector<Want> wants_;         // in the order of their owners
  std::vector<size_t> begins_;      // in wants_, by owner; one more than owners_
  std::optional<BoxIndex> index_;   // index of indexed_owner_'s wants, if there are many
  size_t indexed_owner_ = ~size_t{0};
  std::vector<uint64_t> next_offset_bytes_;  // by owner: payload that the chunks seen so far hold
  uint64_t total_bytes_ = 0;
};

}  // namespace cairn::core::internal
