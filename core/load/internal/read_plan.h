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
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/load/internal/chunk_reader.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/internal/strided_region.h"

namespace cairn::core::internal {

/// The reads of one load. Ownership: borrows the requests and the known tensors, which must outlive
/// the plan. Threads: one at a time.
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

  /// Adds what the requests need to the reader, chunk by chunk. Call once. kUnimplemented: an alias
  /// of a tensor whose chunks are not consecutive ranges of its row-major bytes. Errors of
  /// ForEachChunkOf, as kDataLoss if chunks do not cover a tensor exactly once, and of
  /// ChunkReader::Add.
  Result<void> AddReads(const StepView& view, ChunkReader& reader);

 private:
  /// A request, whose target is the part of the owner that the request needs.
  struct Want {
    const LoadRequest* request = nullptr;
    size_t owner = 0;                                   // in owners_
    std::unique_ptr<const StridedRegion> alias_region;  // in the owner's payload; null: the box

    /// The indices [begin, end) of the first dimension that the request needs; of an alias, all.
    uint64_t begin() const;
    uint64_t end() const;
  };

  /// Adds the requested tensors to owners_ in key order, and to aliases_ those that are aliases.
  /// Takes them from `known` if this contains all of them.
  Result<void> FindTensors(const StepView& view, std::span<const LoadRequest> requests,
                           std::span<const TensorInfo> known);
  /// Puts the owners of the aliases in their place in owners_.
  Result<void> FindOwners(const StepView& view);
  /// Returns the index in owners_, in which a tensor with this name is; fast if it is `hint`.
  size_t IndexOf(std::string_view fqn, size_t hint) const;
  /// Adds what a request needs.
  Result<void> AddWant(const LoadRequest& request, size_t owner);
  /// Adds what the requests need of a chunk of owner `i`. Requires chunks in key order.
  Result<void> Visit(size_t i, const ChunkInfo& chunk, ChunkReader& reader);
  /// Returns the name of the owner, in memory that outlives the plan or is part of it.
  const std::string& NameOf(const Want& want) const;
  Result<void> VisitAliases(size_t i, const ChunkInfo& chunk, ChunkReader& reader);

  std::vector<TensorInfo> aliases_;       // that are requested, in key order
  std::vector<TensorInfo> alias_owners_;  // in key order
  std::deque<Shape> shapes_;              // of owners_, where those of requests differ
  std::vector<TensorEntry> owners_;       // key order; borrows all of these
  std::vector<Want> wants_;               // by owner: aliases, then boxes by `begin`
  // In wants_, by owner; one more than owners_. Advances past those that end before a chunk.
  std::vector<size_t> begins_;
  // By owner: payload that the chunks seen so far hold. Empty if there are no aliases.
  std::vector<uint64_t> next_offset_bytes_;
  uint64_t total_bytes_ = 0;
};

}  // namespace cairn::core::internal
