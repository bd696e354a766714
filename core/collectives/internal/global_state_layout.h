#pragma once
/// Which leaves the ranks have, and which boxes of them each holds: what all must know before they
/// exchange bytes.
///
/// A rank describes its leaves in a manifest (boxes of explicit shards apart). Ranks of one
/// parallel program mostly have the same one, so digests go round first and each distinct manifest
/// is sent once. All ranks then know the same and find the same errors.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Threads: immutable once exchanged.
class GlobalStateLayout {
 public:
  struct Entry {
    enum class Kind : uint8_t { kWhole, kMesh, kBoxes };  // kWhole: plain values too
    std::string fqn;
    Kind kind = Kind::kWhole;
    DType dtype = DType::kUnknown;           // of sharded tensors, as all below
    Shape shape;                             // global
    std::shared_ptr<const DeviceMesh> mesh;  // shared by the entries of one manifest
    std::vector<Placement> placements;
    std::vector<uint32_t> manifests;  // those that have it, ascending
  };

  /// A collective. `local` is what this rank found so far; `options` has to be the same everywhere.
  /// Errors, the same on all ranks: those of AgreeOnStatus; kInvalidArgument: options differ; ranks
  /// say different things of one key; a mesh holds a rank that is none or lacks the tensor; boxes
  /// of explicit shards leave elements out or hold them twice. They name key and rank.
  static Result<GlobalStateLayout> Exchange(Communicator& communicator, const StateDict& state,
                                            const std::vector<Leaf>& leaves,
                                            const Result<void>& local,
                                            std::span<const uint64_t> options);

  /// In an order that all ranks agree on.
  const std::vector<Entry>& entries() const { return entries_; }
  /// Index of the entry; -1 if no rank has the leaf.
  int64_t Find(std::string_view fqn) const;
  bool Has(const Entry& entry, uint32_t rank) const;
  /// Ranks that have the leaf, ascending.
  std::vector<uint32_t> RanksWith(const Entry& entry) const;
  /// What `rank` holds of a sharded entry, as ShardViewsHere orders it on that rank. Boxes without
  /// elements are left out.
  std::vector<Box> BoxesOf(const Entry& entry, uint32_t rank) const;
  uint32_t world_size() const { return static_cast<uint32_t>(manifest_of_rank_.size()); }

 private:
  Result<void> Merge(uint32_t manifest, std::vector<Entry> entries);
  Result<void> CheckMeshes() const;
  Result<void> ReadBoxes(uint32_t rank, std::span<const std::byte> bytes);
  Result<void> CheckBoxes() const;
  uint32_t FirstRankOf(uint32_t manifest) const;

  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_fqn_;
  std::vector<uint32_t> manifest_of_rank_;
  // Explicit boxes by entry: rank and box, ranks ascending.
  std::unordered_map<size_t, std::vector<std::pair<uint32_t, Box>>> boxes_;
};

/// As ShardViewsOf, but a rank outside the mesh holds nothing.
Result<std::vector<ShardView>> ShardViewsHere(const Sharding& sharding, const TensorView& local,
                                              uint32_t rank);

/// kInvalidArgument, naming the key: a tensor's memory does not fit its sharding.
Result<void> CheckShardings(const StateDict& state, const std::vector<Leaf>& leaves, uint32_t rank);

}  // namespace cairn::core::internal
