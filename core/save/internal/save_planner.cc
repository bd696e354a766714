#include "core/save/internal/save_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/save/internal/aliases.h"
#include "core/state_dict/key_name.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/internal/memory_span.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/digest.h"

namespace cairn::core::internal {
namespace {

// Returns the indices [0, count) in the ascending, stable order of key_of(index).
template <typename Key>
std::vector<size_t> SortedOrder(size_t count, const Key& key_of) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, key_of);
  return order;
}

// Gives each item to one of `owner_count` owners, so that these have about equally many bytes: the
// longest items first, each to the owner that has the fewest bytes.
std::vector<uint64_t> BalancedOwners(const std::vector<uint64_t>& item_bytes,
                                     uint64_t owner_count) {
  using Load = std::pair<uint64_t, uint64_t>;  // bytes, owner
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (uint64_t owner = 0; owner < owner_count; ++owner) loads.emplace(0, owner);
  std::vector<uint64_t> owners(item_bytes.size());
  for (const size_t i : SortedOrder(item_bytes.size(), [&](size_t j) { return ~item_bytes[j]; })) {
    const auto [bytes, owner] = loads.top();
    loads.pop();
    owners[i] = owner;
    loads.emplace(bytes + item_bytes[i], owner);
  }
  return owners;
}

Result<std::vector<std::byte>> EncodeLong(const Value& value) {
  CAIRN_TRY_ASSIGN(const ChunkedValue chunked, WithoutBytes(value));
  return EncodeValue(chunked);
}

// Plans one save. Ownership: borrows the options, and the state during Plan. Threads: one.
class SavePlanner {
 public:
  SavePlanner(const SaveOptions& options, const RankInWorld& self)
      : options_(options), self_(self) {}

  // Call one of these, once. Errors: see PlanSave.
  Result<SavePlan> Plan(const StateDict& state);
  Result<SavePlan> PlanLong(std::span<const std::pair<std::string, Value>> values);

 private:
  // A tensor of the state dict. `sharding` is null if it is replicated.
  struct LeafTensor {
    NamedTensor named;
    const Sharding* sharding = nullptr;
  };

  Result<void> SetReplicatedGroup();
  Result<std::vector<LeafTensor>> ReadLeaves(const StateDict& state);
  Result<void> AddReplicated(PlannedTensor tensor);
  // Adds the hidden tensor of a long value, which is values[slot] of the state.
  Result<void> AddLongValue(const std::string& fqn, const Value& value, size_t slot);
  Result<void> AddSharded(const LeafTensor& leaf);
  // Returns the FQN of an earlier tensor that is the same part of the same memory, or null.
  const std::string* FindSame(const LeafTensor& leaf, const std::vector<ShardView>& held);
  // Adds a box of the tensor that was added last, with all of its chunks.
  Result<void> AddShard(ShardView held, const ReplicaGroup& group);
  // Sorts tensors by key and shards by tensor, and fills shards_of_group_.
  void Sort();
  // Gives each of the group's tensors to one rank, and empties the shards of the other ranks.
  void DivideAmong(const ReplicaGroup& group, const std::vector<size_t>& shards);
  // Removes shards without chunks, and sums up.
  void Finish();

  const SaveOptions& options_;
  const RankInWorld self_;
  std::shared_ptr<const DeviceMesh> replicated_mesh_;  // shared with the options, or created here
  EqualMeshes meshes_;
  ReplicaGroup replicated_group_;
  std::vector<std::pair<std::string, size_t>> long_values_;  // FQN, slot; only on rank 0
  SavePlan plan_;
  std::vector<ReplicaGroup> group_of_shard_;  // in the order in which shards were added
  std::map<ReplicaGroup, std::vector<size_t>> shards_of_group_;  // indices, in key order
  std::map<const std::byte*, const LeafTensor*> first_at_;       // by the address of their memory
};

}  // namespace

Result<void> CheckSaveOptions(const SaveOptions& options) {
  if (options.chunk_bytes > kMaxChunkBytes) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("chunk_bytes is {}; the most is {}",
                                                         options.chunk_bytes, kMaxChunkBytes));
  }
  if (options.max_deltas > kv::kMaxDeltas) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("max_deltas is {}; the most is {}",
                                                         options.max_deltas, kv::kMaxDeltas));
  }
  for (const auto& [name, data] : options.records) CAIRN_TRY(CheckApplicationRecord(name, data));
  return kv::CheckAnnotations(options.metrics, options.note, options.tags);
}

Result<std::vector<NamedRecord>> EncodeValues(const StateDict& state, std::span<const Leaf> leaves,
                                              bool long_as_chunks) {
  std::vector<NamedRecord> values;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (IsTensor(state.tree.nodes[leaves[i].node].kind)) continue;
    const Value& value = state.values[state.slot[i]];
    if (long_as_chunks && std::holds_alternative<ChunkedValue>(value)) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "a value without its bytes; read them with LoadValues",
                        .key = leaves[i].fqn});
    }
    auto record = long_as_chunks && IsLong(value) ? EncodeLong(value) : EncodeValue(value);
    if (!record) return Fail(std::move(record).error().WithKey(leaves[i].fqn));
    values.emplace_back(leaves[i].fqn, *std::move(record));
  }
  std::ranges::sort(values, {}, &NamedRecord::first);
  return values;
}

Result<SavePlan> SavePlanner::Plan(const StateDict& state) {
  CAIRN_TRY(CheckSaveOptions(options_));
  CAIRN_TRY(SetReplicatedGroup());
  CAIRN_TRY_ASSIGN(std::vector<LeafTensor> leaves, ReadLeaves(state));
  std::vector<NamedTensor> replicated;
  replicated.reserve(leaves.size());
  std::vector<const LeafTensor*> sharded;
  for (LeafTensor& leaf : leaves) {
    if (leaf.sharding == nullptr) {
      replicated.push_back(std::move(leaf.named));
    } else {
      sharded.push_back(&leaf);
    }
  }
  // In key order, so that every rank finds the same owner of shared memory.
  std::ranges::sort(sharded, {},
                    [](const LeafTensor* leaf) -> const std::string& { return leaf->named.fqn; });
  CAIRN_TRY_ASSIGN(std::vector<PlannedTensor> planned, PlanTensors(replicated, plan_.values));
  plan_.tensors.reserve(planned.size() + sharded.size());
  plan_.shards.reserve(planned.size());
  for (PlannedTensor& tensor : planned) CAIRN_TRY(AddReplicated(std::move(tensor)));
  for (const LeafTensor* leaf : sharded) {
    Result<void> added = AddSharded(*leaf);
    if (!added) return Fail(std::move(added).error().WithKey(leaf->named.fqn));
  }
  for (const auto& [fqn, slot] : long_values_) {
    CAIRN_TRY(AddLongValue(fqn, state.values[slot], slot));
  }
  plan_.has_shards = !sharded.empty();
  Sort();
  for (const auto& [group, shards] : shards_of_group_) DivideAmong(group, shards);
  Finish();
  plan_.structure = EncodeTree(state.tree);
  return std::move(plan_);
}

Result<void> SavePlanner::SetReplicatedGroup() {
  replicated_mesh_ = options_.replicated_mesh;
  if (replicated_mesh_ == nullptr) {
    CAIRN_TRY_ASSIGN(DeviceMesh world, DeviceMesh::Make({{"world", self_.world_size}}));
    replicated_mesh_ = std::make_shared<const DeviceMesh>(std::move(world));
  } else if (!replicated_mesh_->CoordinateOf(self_.rank)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("replicated_mesh lacks rank {}, which holds tensors without a sharding",
                            self_.rank));
  }
  replicated_group_ = ReplicaGroup::Whole(*meshes_.Find(replicated_mesh_.get()));
  return {};
}

Result<std::vector<SavePlanner::LeafTensor>> SavePlanner::ReadLeaves(const StateDict& state) {
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, state.Leaves());
  std::vector<LeafTensor> tensors;
  tensors.reserve(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    const uint32_t slot = state.slot[i];
    if (!IsTensor(state.tree.nodes[leaves[i].node].kind)) {
      if (self_.rank == 0 && IsLong(state.values[slot])) {
        long_values_.emplace_back(leaves[i].fqn, slot);
      }
      continue;
    }
    if (options_.statistics && state.tensors[slot].device != kHostDevice) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "a save does not compute the statistics of tensors in device "
                                   "memory; save without them; kv-admin statistics adds them later",
                        .key = leaves[i].fqn});
    }
    const auto sharding = state.shardings.find(slot);
    tensors.push_back(
        {.named = {leaves[i].fqn, state.tensors[slot]},
         .sharding = sharding == state.shardings.end() ? nullptr : &sharding->second});
  }
  CAIRN_TRY_ASSIGN(plan_.values, EncodeValues(state, leaves, self_.rank == 0));
  plan_.tensor_count = tensors.size();
  return tensors;
}

Result<void> SavePlanner::AddReplicated(PlannedTensor tensor) {
  plan_.tensors.push_back(std::move(tensor.info));
  const TensorInfo& info = plan_.tensors.back();
  if (info.alias_of || info.nbytes == 0) return {};
  return AddShard({.box = WholeBox(info.shape), .view = std::move(tensor.source)},
                  replicated_group_);
}

Result<void> SavePlanner::AddLongValue(const std::string& fqn, const Value& value, size_t slot) {
  const std::span<const std::byte> bytes = BytesOf(value);
  const TensorView view{.dtype = DType::kUInt8, .shape = {bytes.size()}, .data = bytes.data()};
  plan_.tensors.push_back({.fqn = fqn,
                           .dtype = view.dtype,
                           .shape = view.shape,
                           .nbytes = bytes.size(),
                           .hidden = true});
  CAIRN_TRY(AddShard({.box = WholeBox(view.shape), .view = view}, ReplicaGroup()));
  plan_.shards.back().value_slot = slot;
  return {};
}

Result<SavePlan> SavePlanner::PlanLong(std::span<const std::pair<std::string, Value>> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    CAIRN_TRY(AddLongValue(values[i].first, values[i].second, i));
  }
  Sort();
  Finish();
  return std::move(plan_);
}

Result<void> SavePlanner::AddSharded(const LeafTensor& leaf) {
  const Sharding& sharding = *leaf.sharding;
  const TensorView& local = leaf.named.view;
  TensorInfo info{.fqn = leaf.named.fqn, .dtype = local.dtype, .shape = sharding.global_shape};
  CAIRN_TRY_ASSIGN(info.nbytes, TensorBytes(info.dtype, info.shape));
  ReplicaGroup group;
  std::vector<ShardView> held;
  // A rank that is not on the mesh holds nothing of the tensor.
  if (sharding.mesh == nullptr || sharding.mesh->CoordinateOf(self_.rank)) {
    CAIRN_TRY_ASSIGN(held, ShardViewsOf(sharding, local, self_.rank));
    for (const ShardView& box : held) CAIRN_TRY(SpanOf(box.view));
    group = ReplicaGroup::Of(sharding, meshes_);
  }
  if (const std::string* owner = FindSame(leaf, held)) {
    info.alias_of = *owner;
    info.alias_strides = RowMajorStrides(info.shape);
    held.clear();
  }
  plan_.tensors.push_back(std::move(info));
  for (ShardView& box : held) CAIRN_TRY(AddShard(std::move(box), group));
  return {};
}

const std::string* SavePlanner::FindSame(const LeafTensor& leaf,
                                         const std::vector<ShardView>& held) {
  if (held.empty()) return nullptr;
  const auto [found, inserted] = first_at_.try_emplace(held.front().view.data, &leaf);
  if (inserted) return nullptr;
  const LeafTensor& other = *found->second;
  const Sharding& a = *leaf.sharding;
  const Sharding& b = *other.sharding;
  const bool same = leaf.named.view.dtype == other.named.view.dtype &&
                    leaf.named.view.shape == other.named.view.shape &&
                    leaf.named.view.strides == other.named.view.strides && a.mesh != nullptr &&
                    b.mesh != nullptr && meshes_.Find(a.mesh.get()) == meshes_.Find(b.mesh.get()) &&
                    a.global_shape == b.global_shape && a.placements == b.placements;
  return same ? &other.named.fqn : nullptr;
}

Result<void> SavePlanner::AddShard(ShardView held, const ReplicaGroup& group) {
  const TensorInfo& info = plan_.tensors.back();
  CAIRN_TRY_ASSIGN(ChunkGrid grid,
                   ChunkGrid::Make(info.dtype, std::move(held.box), options_.chunk_bytes));
  const uint64_t chunks = grid.chunk_count();
  plan_.shards.push_back({.tensor = plan_.tensors.size() - 1,
                          .grid = std::move(grid),
                          .end_chunk = chunks,
                          .source = std::move(held.view),
                          .unchanged = {}});
  group_of_shard_.push_back(group);
  return {};
}

void SavePlanner::Sort() {
  // std::string compares bytes, so this is the order of kv::FqnKey.
  const std::vector<size_t> order = SortedOrder(
      plan_.tensors.size(), [&](size_t i) -> const std::string& { return plan_.tensors[i].fqn; });
  std::vector<size_t> sorted_index(order.size());  // by the index before
  std::vector<TensorInfo> tensors;
  tensors.reserve(order.size());
  for (const size_t i : order) {
    sorted_index[i] = tensors.size();
    tensors.push_back(std::move(plan_.tensors[i]));
  }
  plan_.tensors = std::move(tensors);
  for (PlannedShard& shard : plan_.shards) shard.tensor = sorted_index[shard.tensor];
  std::vector<PlannedShard> shards;
  shards.reserve(plan_.shards.size());
  for (const size_t i :
       SortedOrder(plan_.shards.size(), [&](size_t j) { return plan_.shards[j].tensor; })) {
    shards_of_group_[group_of_shard_[i]].push_back(shards.size());
    shards.push_back(std::move(plan_.shards[i]));
  }
  plan_.shards = std::move(shards);
}

void SavePlanner::DivideAmong(const ReplicaGroup& group, const std::vector<size_t>& shards) {
  const auto member = group.MembershipOf(self_.rank);
  if (member.size == 1) return;
  // The first key decides which member gets the first shard, so that many groups of few shards do
  // not always burden the same rank.
  const std::string& first_fqn = plan_.tensors[plan_.shards[shards.front()].tensor].fqn;
  const uint64_t rotation = kv::Checksum64(std::as_bytes(std::span(first_fqn))) % member.size;
  const uint64_t self = (member.index + rotation) % member.size;
  std::vector<uint64_t> tensor_bytes;  // bytes per tensor in this group
  std::vector<size_t> tensor_of(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const PlannedShard& shard = plan_.shards[shards[i]];
    const bool is_new = i == 0 || plan_.shards[shards[i - 1]].tensor != shard.tensor;
    if (is_new) tensor_bytes.push_back(0);
    tensor_bytes.back() += shard.end_bytes() - shard.begin_bytes();
    tensor_of[i] = tensor_bytes.size() - 1;
  }
  const std::vector<uint64_t> owners = BalancedOwners(tensor_bytes, member.size);
  for (size_t i = 0; i < shards.size(); ++i) {
    PlannedShard& shard = plan_.shards[shards[i]];
    if (owners[tensor_of[i]] != self) shard.end_chunk = shard.first_chunk;
  }
}

void SavePlanner::Finish() {
  std::erase_if(plan_.shards, [](const PlannedShard& shard) { return shard.chunk_count() == 0; });
  for (const PlannedShard& shard : plan_.shards) {
    plan_.tensors[shard.tensor].chunk_count += shard.chunk_count();
    plan_.own_bytes += shard.end_bytes() - shard.begin_bytes();
  }
  for (const TensorInfo& tensor : plan_.tensors) {
    if (!tensor.alias_of) plan_.logical_bytes += tensor.nbytes;
  }
}

Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options,
                          const RankInWorld& self) {
  return SavePlanner(options, self).Plan(state);
}

Result<SavePlan> PlanLongValues(std::span<const std::pair<std::string, Value>> values,
                                const SaveOptions& options) {
  return SavePlanner(options, {}).PlanLong(values);
}

Result<void> MarkStatedUnchanged(SavePlan& plan, const SaveOptions& options, uint64_t step) {
  plan.has_lost_marks = false;
  for (PlannedShard& shard : plan.shards) {
    shard.is_stated_unchanged = false;
    shard.compared_chunk.reset();
  }
  if (options.unchanged.empty()) return {};
  CAIRN_TRY_ASSIGN(const KeyPatterns patterns, KeyPatterns::Parse(options.unchanged));
  // Whether a key is escaped depends on other keys, so in the base step, one of several leaves with
  // the same texts may have the name of another one.
  std::unordered_map<std::string, size_t> leaves_by_texts;
  for (const TensorInfo& tensor : plan.tensors) {
    if (!tensor.hidden) ++leaves_by_texts[JoinedTexts(tensor.fqn)];
  }
  for (const auto& [fqn, record] : plan.values) ++leaves_by_texts[JoinedTexts(fqn)];
  std::vector<bool> matches(plan.tensors.size());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::string& fqn = plan.tensors[i].fqn;
    matches[i] = patterns.Matches(fqn) && leaves_by_texts[JoinedTexts(fqn)] <= 1;
  }
  for (PlannedShard& shard : plan.shards) {
    // Devices digest their tensors at the rate of their memory. Values are always compared.
    shard.is_stated_unchanged =
        matches[shard.tensor] && !shard.on_device() && !shard.value_slot.has_value();
  }
  ChooseComparedChunk(plan, step);
  return {};
}

void UnmarkRenamed(SavePlan& plan, const StepView& base, uint64_t step, TreeCache& trees) {
  if (std::ranges::none_of(plan.shards, &PlannedShard::is_stated_unchanged)) return;
  if (kv::PayloadDigest(plan.structure) == base.step.structure) return;
  const auto tree = trees.Find(base);
  if (tree && !(*tree)->has_forms()) return;
  const auto texts = FindEscapedTexts(base);
  for (PlannedShard& shard : plan.shards) {
    if (texts && !texts->contains(JoinedTexts(plan.tensors[shard.tensor].fqn))) continue;
    plan.has_lost_marks |= shard.is_stated_unchanged;
    shard.is_stated_unchanged = false;
  }
  ChooseComparedChunk(plan, step);
}

void ChooseComparedChunk(SavePlan& plan, uint64_t step) {
  uint64_t chunks = 0;
  for (PlannedShard& shard : plan.shards) {
    shard.compared_chunk.reset();
    if (shard.is_stated_unchanged) chunks += shard.chunk_count();
  }
  if (chunks == 0) return;
  uint64_t compared = step % chunks;
  for (PlannedShard& shard : plan.shards) {
    if (!shard.is_stated_unchanged) continue;
    if (compared < shard.chunk_count()) {
      shard.compared_chunk = shard.first_chunk + compared;
      return;
    }
    compared -= shard.chunk_count();
  }
}

Error NotUnchangedError(const std::string& fqn) {
  return {.code = ErrorCode::kInvalidArgument,
          .message =
              "the tensor differs from the base step, but `unchanged` states that it does not;"
              " nothing was saved",
          .key = fqn};
}

}  // namespace cairn::core::internal

namespace cairn::core {

Result<void> CheckSave(const StateDict& state, const SaveOptions& options) {
  return kv::CatchExhaustion("the plan of a save", [&]() -> Result<void> {
    CAIRN_TRY(internal::PlanSave(state, options));
    return {};
  });
}

}  // namespace cairn::core
