// From a state dict to the chunks that one rank writes.

#include "core/save/internal/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/sharding/internal/replica_group.h"
#include "core/step/internal/records.h"
#include "core/tensor/internal/memory_span.h"
#include "kv/digest.h"

namespace cairn::core::internal {
namespace {

// A tensor of the state dict, its leaf's view, and where it lies; null: whole on every rank.
struct LeafTensor {
  NamedTensor named;
  const Sharding* sharding = nullptr;
};

class Planner {
 public:
  Planner(const SaveOptions& options, const RankInWorld& place) : options_(options), place_(place) {}

  Result<SavePlan> Plan(const StateDict& state) {
    CAIRN_TRY(SetPlainMesh());
    CAIRN_TRY_ASSIGN(const std::vector<LeafTensor> leaves, ReadLeaves(state));
    std::vector<NamedTensor> plain;
    std::vector<const LeafTensor*> sharded;
    for (const LeafTensor& leaf : leaves) {
      if (leaf.sharding == nullptr) {
        plain.push_back(leaf.named);
      } else {
        sharded.push_back(&leaf);
      }
    }
    // In key order, so that every rank finds the same owner of what is shared.
    std::ranges::sort(sharded, {},
                      [](const LeafTensor* leaf) -> const std::string& { return leaf->named.fqn; });
    CAIRN_TRY_ASSIGN(std::vector<PlannedTensor> planned, PlanTensors(plain));
    for (PlannedTensor& tensor : planned) CAIRN_TRY(AddPlain(std::move(tensor)));
    for (const LeafTensor* leaf : sharded) CAIRN_TRY(AddSharded(*leaf));
    plan_.has_shards = !sharded.empty();
    Sort();
    for (auto& [group, pieces] : groups_) Share(group, pieces);
    Finish();
    plan_.structure = EncodeTree(state.tree);
    return std::move(plan_);
  }

 private:
  Result<void> SetPlainMesh() {
    plain_mesh_ = options_.plain_mesh;
    if (plain_mesh_ == nullptr) {
      CAIRN_TRY_ASSIGN(DeviceMesh world, DeviceMesh::Make({{"world", place_.world_size}}));
      plain_mesh_ = std::make_shared<const DeviceMesh>(std::move(world));
    } else if (!plain_mesh_->CoordinateOf(place_.rank)) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("plain_mesh lacks rank {}, which holds plain tensors", place_.rank));
    }
    plain_group_ = ReplicaGroup::Whole(*meshes_.Find(plain_mesh_.get()));
    return {};
  }

  Result<std::vector<LeafTensor>> ReadLeaves(const StateDict& state) {
    CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(state.tree));
    if (leaves.size() != state.slot.size()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the state dict has {} leaves in its tree but contents for {}",
                              leaves.size(), state.slot.size()));
    }
    std::vector<LeafTensor> tensors;
    for (size_t i = 0; i < leaves.size(); ++i) {
      const std::string& fqn = leaves[i].fqn;
      const uint32_t slot = state.slot[i];
      const bool is_tensor = IsTensor(state.tree.nodes[leaves[i].node].kind);
      if (slot >= (is_tensor ? state.tensors.size() : state.values.size())) {
        return Fail(Error{.code = ErrorCode::kInvalidArgument,
                          .message = "a leaf of the state dict refers to contents that it lacks",
                          .key = fqn});
      }
      if (is_tensor) {
        const auto sharding = state.shardings.find(slot);
        tensors.push_back(
            {.named = {fqn, state.tensors[slot]},
             .sharding = sharding == state.shardings.end() ? nullptr : &sharding->second});
        continue;
      }
      auto record = EncodeValue(state.values[slot]);
      if (!record) return Fail(std::move(record).error().WithKey(fqn));
      plan_.values.emplace_back(fqn, *std::move(record));
    }
    std::ranges::sort(plan_.values, {}, &std::pair<std::string, std::vector<std::byte>>::first);
    plan_.tensor_count = tensors.size();
    return tensors;
  }

  Result<void> AddPlain(PlannedTensor tensor) {
    plan_.tensors.push_back(std::move(tensor.info));
    const TensorInfo& info = plan_.tensors.back();
    if (info.alias_of || info.nbytes == 0) return {};
    return AddPiece({.box = WholeBox(info.shape), .view = std::move(tensor.source)}, plain_group_);
  }

  Result<void> AddSharded(const LeafTensor& leaf) {
    Result<void> added = AddShardedUnnamed(leaf);
    if (!added) return Fail(std::move(added).error().WithKey(leaf.named.fqn));
    return {};
  }

  Result<void> AddShardedUnnamed(const LeafTensor& leaf) {
    const Sharding& sharding = *leaf.sharding;
    const TensorView& local = leaf.named.view;
    TensorInfo info{.fqn = leaf.named.fqn, .dtype = local.dtype, .shape = sharding.global_shape};
    CAIRN_TRY_ASSIGN(info.nbytes, TensorBytes(info.dtype, info.shape));
    ReplicaGroup group;
    std::vector<LocalPiece> pieces;
    // A rank that is not of the mesh holds nothing of the tensor.
    if (sharding.mesh == nullptr || sharding.mesh->CoordinateOf(place_.rank)) {
      CAIRN_TRY_ASSIGN(pieces, PiecesOf(sharding, local, place_.rank));
      for (const LocalPiece& piece : pieces) CAIRN_TRY(SpanOf(piece.view));
      group = ReplicaGroup::Of(sharding, meshes_);
    }
    if (const std::string* owner = FindSame(leaf, pieces)) {
      info.alias_of = *owner;
      info.alias_strides = RowMajorStrides(info.shape);
      pieces.clear();
    }
    plan_.tensors.push_back(std::move(info));
    for (LocalPiece& piece : pieces) CAIRN_TRY(AddPiece(std::move(piece), group));
    return {};
  }

  // The tensor before it that is the same part of the same memory (tied weights), by name.
  const std::string* FindSame(const LeafTensor& leaf, const std::vector<LocalPiece>& pieces) {
    if (pieces.empty()) return nullptr;
    const auto [found, inserted] = same_memory_.try_emplace(pieces.front().view.data, &leaf);
    if (inserted) return nullptr;
    const LeafTensor& other = *found->second;
    const Sharding& a = *leaf.sharding;
    const Sharding& b = *other.sharding;
    const bool same = leaf.named.view.dtype == other.named.view.dtype &&
                      leaf.named.view.shape == other.named.view.shape &&
                      leaf.named.view.strides == other.named.view.strides && a.mesh != nullptr &&
                      b.mesh != nullptr &&
                      meshes_.Find(a.mesh.get()) == meshes_.Find(b.mesh.get()) &&
                      a.global_shape == b.global_shape && a.placements == b.placements;
    return same ? &other.named.fqn : nullptr;
  }

  Result<void> AddPiece(LocalPiece piece, const ReplicaGroup& group) {
    const TensorInfo& info = plan_.tensors.back();
    CAIRN_TRY_ASSIGN(ChunkGrid grid,
                     ChunkGrid::Make(info.dtype, std::move(piece.box), options_.chunk_bytes));
    const uint64_t chunks = grid.chunk_count();
    plan_.pieces.push_back({.tensor = plan_.tensors.size() - 1,
                            .grid = std::move(grid),
                            .end_chunk = chunks,
                            .source = std::move(piece.view),
                            .unchanged = {}});
    group_of_piece_.push_back(group);
    return {};
  }

  // Tensors into key order, pieces behind their tensors.
  void Sort() {
    std::vector<size_t> order(plan_.tensors.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {},
                      [&](size_t i) -> const std::string& { return plan_.tensors[i].fqn; });
    std::vector<size_t> place(order.size());
    std::vector<TensorInfo> tensors;
    tensors.reserve(order.size());
    for (const size_t i : order) {
      place[i] = tensors.size();
      tensors.push_back(std::move(plan_.tensors[i]));
    }
    plan_.tensors = std::move(tensors);
    std::vector<size_t> piece_order(plan_.pieces.size());
    for (size_t i = 0; i < piece_order.size(); ++i) {
      plan_.pieces[i].tensor = place[plan_.pieces[i].tensor];
      piece_order[i] = i;
    }
    std::ranges::stable_sort(piece_order, {}, [&](size_t i) { return plan_.pieces[i].tensor; });
    std::vector<PlannedShard> pieces;
    pieces.reserve(piece_order.size());
    for (const size_t i : piece_order) {
      groups_[group_of_piece_[i]].push_back(pieces.size());
      pieces.push_back(std::move(plan_.pieces[i]));
    }
    plan_.pieces = std::move(pieces);
  }

  // Leaves of each piece the run of chunks that falls to this rank: those whose middle lies in its
  // share of the group's bytes. Which member gets the first share is drawn from the first key, so
  // that the rounding of many groups does not burden the same rank.
  void Share(const ReplicaGroup& group, const std::vector<size_t>& pieces) {
    const ReplicaGroup::Place place = group.PlaceOf(place_.rank);
    if (place.size == 1) return;
    const std::string& first_fqn = plan_.tensors[plan_.pieces[pieces.front()].tensor].fqn;
    const uint64_t turn = kv::Checksum64(std::as_bytes(std::span(first_fqn))) % place.size;
    const uint64_t share = (place.index + turn) % place.size;
    uint64_t total = 0;
    for (const size_t i : pieces) total += PieceBytes(plan_.pieces[i]);
    uint64_t before = 0;
    for (const size_t i : pieces) {
      PlannedShard& piece = plan_.pieces[i];
      const auto share_of = [&](uint64_t chunk) {
        const uint64_t middle =
            before + piece.grid.offset_bytes(chunk) + piece.grid.length_bytes(chunk) / 2;
        return ShareOf(middle, total, place.size);
      };
      const auto first_of = [&](uint64_t wanted) {  // the first chunk of that share or a later one
        uint64_t low = 0;
        uint64_t high = piece.grid.chunk_count();
        while (low < high) {
          const uint64_t middle = low + (high - low) / 2;
          if (share_of(middle) < wanted) {
            low = middle + 1;
          } else {
            high = middle;
          }
        }
        return low;
      };
      piece.first_chunk = first_of(share);
      piece.end_chunk = first_of(share + 1);
      before += PieceBytes(piece);
    }
  }

  static uint64_t PieceBytes(const PlannedShard& piece) {
    const uint64_t chunks = piece.grid.chunk_count();
    return piece.grid.offset_bytes(chunks - 1) + piece.grid.length_bytes(chunks - 1);
  }

  void Finish() {
    std::erase_if(plan_.pieces, [](const PlannedShard& piece) { return piece.chunk_count() == 0; });
    for (const PlannedShard& piece : plan_.pieces) {
      plan_.tensors[piece.tensor].chunk_count += piece.chunk_count();
      plan_.own_bytes += piece.end_bytes() - piece.begin_bytes();
    }
    for (const TensorInfo& tensor : plan_.tensors) {
      if (!tensor.alias_of) plan_.logical_bytes += tensor.nbytes;
    }
  }

  const SaveOptions& options_;
  const RankInWorld place_;
  std::shared_ptr<const DeviceMesh> plain_mesh_;  // the caller's too, or ours
  EqualMeshes meshes_;
  ReplicaGroup plain_group_;
  SavePlan plan_;
  std::vector<ReplicaGroup> group_of_piece_;            // in the order in which pieces were added
  std::map<ReplicaGroup, std::vector<size_t>> groups_;  // pieces, in key order
  std::map<const std::byte*, const LeafTensor*> same_memory_;
};

}  // namespace

Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options,
                          const RankInWorld& place) {
  if (options.chunk_bytes > kMaxChunkBytes) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("chunk_bytes is {}; the most is {}",
                                                         options.chunk_bytes, kMaxChunkBytes));
  }
  return Planner(options, place).Plan(state);
}

}  // namespace cairn::core::internal
