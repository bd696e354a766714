#pragma once
/// The leaves of all ranks, and the boxes of them that each rank holds. All ranks need this before
/// they exchange bytes.
///
/// A rank describes its leaves in a layout message. Most ranks of a parallel program have the same
/// message, unless they have explicit shards, so they exchange digests first and send each distinct
/// message once. All ranks then have the same information and find the same errors.

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

/// Threads: safe; a layout is immutable.
class GlobalStateLayout {
 public:
  struct Entry {
    enum class Kind : uint8_t { kWhole, kMesh, kBoxes };  // kWhole: not sharded, or a value
    std::string fqn;
    Kind kind = Kind::kWhole;
    DType dtype = DType::kUnknown;           // this and the following: of sharded tensors
    Shape shape;                             // global
    std::shared_ptr<const DeviceMesh> mesh;  // shared by the entries of one message
    std::vector<Placement> placements;
    std::vector<uint32_t> messages;       // the layout messages that contain it, ascending
    std::vector<std::vector<Box>> boxes;  // kBoxes: by position in `messages`
  };

  /// Collective. `local` is the status of this rank so far. Requires the leaves of state.Leaves()
  /// if it is a success. Returns the same error on all ranks: the error of AgreeOnStatus, or
  /// kInvalidArgument, naming key and rank: `options` differ; ranks describe a key differently; a
  /// mesh contains a rank that does not exist or lacks the tensor; explicit shards have gaps or
  /// overlaps.
  static Result<GlobalStateLayout> Exchange(Communicator& communicator, const StateDict& state,
                                            const std::vector<Leaf>& leaves,
                                            const Result<void>& local,
                                            std::span<const uint64_t> options);

  /// All leaves, in the same order on all ranks.
  const std::vector<Entry>& entries() const { return entries_; }
  /// Returns the index of the entry; -1 if no rank has the leaf.
  int64_t Find(std::string_view fqn) const;
  bool Has(const Entry& entry, uint32_t rank) const;
  /// Ranks that have the leaf, ascending.
  std::vector<uint32_t> RanksWith(const Entry& entry) const;
  /// Returns the boxes of a sharded entry that `rank` holds, except boxes without elements, in the
  /// order of ShardViewsHere on that rank.
  std::vector<Box> BoxesOf(const Entry& entry, uint32_t rank) const;
  uint32_t world_size() const { return static_cast<uint32_t>(message_of_rank_.size()); }

 private:
  Result<void> Merge(uint32_t message, std::vector<Entry> entries);
  Result<void> CheckMeshes() const;
  Result<void> CheckBoxes() const;
  uint32_t FirstRankOf(uint32_t message) const;

  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_fqn_;
  std::vector<uint32_t> message_of_rank_;
};

/// Returns what ShardViewsOf returns, but nothing for a rank that is not in the mesh.
Result<std::vector<ShardView>> ShardViewsHere(const Sharding& sharding, const TensorView& local,
                                              uint32_t rank);

/// Requires the leaves of state.Leaves(). kInvalidArgument, naming the key: a tensor has no valid
/// dtype and shape, or its memory does not match its sharding.
Result<void> CheckShardings(const StateDict& state, const std::vector<Leaf>& leaves, uint32_t rank);

}  // namespace cairn::core::internal
