#include "core/save/internal/save_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "core/state_dict/key_name.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/chunk_grid.h"
#include "core/tensor/internal/memory_span.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/digest.h"

namespace cairn::core::internal {
namespace {

// A leaf, memory that aliases share, or the bytes of a long value. Borrows the state and the
// layout of the plan.
struct PlannedTensor {
  std::string_view fqn;
  const TensorRef* view = nullptr;
  const Sharding* sharding = nullptr;  // null: replicated
  const TensorAlias* alias = nullptr;  // null: it has bytes of its own
  std::optional<uint32_t> value_slot;  // index into StateDict::values, if it is a long value
  bool is_hidden = false;
};

// Decides owners and aliases of replicated tensors. In a group of tensors that overlap in memory,
// the first tensor by FQN that is row-major and covers all memory of the group owns the bytes. If
// there is none, a hidden uint8 tensor "<first FQN>.__storage__" owns them. Its name is not that
// of a value, either; not even of a short one, as it may be long on other ranks. Threads: one.
class AliasPlanner {
 public:
  // Requires tensors in key order.
  AliasPlanner(std::vector<PlannedTensor>& tensors, std::span<const NamedRecord> values,
               PlanLayout& layout)
      : tensors_(tensors), values_(values), layout_(layout) {}

  // Sets the aliases, and appends the hidden tensors. Call once. kInvalidArgument: a tensor
  // without memory, or of impossible size; names the key.
  Result<void> Plan() {
    spans_.resize(tensors_.size());
    for (size_t i = 0; i < spans_.size(); ++i) {
      if (tensors_[i].sharding != nullptr) continue;
      auto span = SpanOf(*tensors_[i].view);
      if (!span) return Fail(std::move(span).error().WithKey(tensors_[i].fqn));
      spans_[i] = *span;
    }
    for (const std::span<size_t> group : OverlapGroups(spans_)) {
      std::ranges::sort(group);  // by FQN
      PlanGroup(group);
    }
    return {};
  }

 private:
  void PlanGroup(std::span<const size_t> group) {
    MemorySpan all = spans_[group.front()];
    for (const size_t i : group) {
      all.begin = std::min(all.begin, spans_[i].begin);
      all.end = std::max(all.end, spans_[i].end);
    }
    const auto owner = std::ranges::find_if(group, [&](size_t i) {
      return spans_[i].begin == all.begin && spans_[i].end == all.end &&
             tensors_[i].view->is_contiguous();
    });
    // A tensor with gaps or repeats in memory is gathered in row-major order.
    if (group.size() == 1 && (owner != group.end() || !RepeatsMuch(group.front()))) return;
    const std::string_view owner_fqn =
        owner != group.end() ? tensors_[*owner].fqn : AddHidden(group.front(), all);
    for (const size_t i : group) {
      if (owner == group.end() || i != *owner) AddAlias(i, owner_fqn, all.begin);
    }
  }

  bool RepeatsMuch(size_t i) const {
    const TensorRef& view = *tensors_[i].view;
    const uint64_t memory_bytes = static_cast<uint64_t>(spans_[i].end - spans_[i].begin);
    return *TensorBytes(view.dtype, view.shape) > memory_bytes + kMaxRepeatedBytes;
  }

  std::string_view AddHidden(size_t first, const MemorySpan& all) {
    if (names_.empty()) {
      for (const PlannedTensor& tensor : tensors_) names_.emplace(tensor.fqn);
      for (const auto& [value_fqn, record] : values_) names_.insert(value_fqn);
    }
    std::string fqn = std::string(tensors_[first].fqn) + ".__storage__";
    while (!names_.insert(fqn).second) fqn += "_";
    const TensorView bytes{.dtype = DType::kUInt8,
                           .shape = {all.end - all.begin},
                           .strides = {},
                           .data = reinterpret_cast<const std::byte*>(all.begin),
                           .device = tensors_[first].view->device};
    tensors_.push_back({.fqn = layout_.memory.Copy(fqn),
                        .view = layout_.AddView(bytes),
                        .value_slot = {},
                        .is_hidden = true});
    return tensors_.back().fqn;
  }

  void AddAlias(size_t i, std::string_view owner_fqn, uintptr_t owner_begin) {
    const TensorRef& view = *tensors_[i].view;
    std::span<const uint64_t> strides = view.strides;
    if (strides.empty()) strides = layout_.Copy(RowMajorStrides(view.shape));
    tensors_[i].alias = &layout_.aliases.emplace_back(TensorAlias{
        .owner = owner_fqn, .offset_bytes = spans_[i].begin - owner_begin, .strides = strides});
  }

  std::vector<PlannedTensor>& tensors_;
  std::span<const NamedRecord> values_;
  PlanLayout& layout_;
  std::vector<MemorySpan> spans_;          // one per leaf; empty for sharded ones
  std::unordered_set<std::string> names_;  // names that are taken; empty until a new name is needed
};

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

// In the order of kv::FqnKey: string_view compares bytes.
void SortByKey(std::vector<PlannedTensor>& tensors) {
  if (std::ranges::is_sorted(tensors, {}, &PlannedTensor::fqn)) return;  // the usual order
  std::ranges::sort(tensors, {}, &PlannedTensor::fqn);
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
  Result<SavePlan> Plan(const StateDict& state) {
    CAIRN_TRY(CheckSaveOptions(options_));
    CAIRN_TRY(SetReplicatedGroup());
    CAIRN_TRY_ASSIGN(std::vector<PlannedTensor> tensors, ReadLeaves(state));
    SortByKey(tensors);  // so that every rank finds the same owner of shared memory
    CAIRN_TRY(AliasPlanner(tensors, plan_.values, *layout_).Plan());
    tensors.insert(tensors.end(), long_values_.begin(), long_values_.end());
    SortByKey(tensors);
    layout_->structure = EncodeTree(state.tree);
    return PlanTensors(tensors);
  }

  Result<SavePlan> PlanLong(std::span<const std::pair<std::string, Value>> values) {
    std::vector<PlannedTensor> tensors;
    for (const auto& [fqn, value] : values) {
      const auto slot = static_cast<uint32_t>(tensors.size());
      tensors.push_back(LongValue(layout_->memory.Copy(fqn), value, slot));
    }
    SortByKey(tensors);
    return PlanTensors(tensors);
  }

 private:
  // A box that this rank holds.
  struct HeldShard {
    PlannedShard shard;  // without its chunks
    uint64_t length_bytes = 0;
    bool is_own = true;  // written by this rank
  };

  Result<void> SetReplicatedGroup() {
    replicated_mesh_ = options_.replicated_mesh;
    if (replicated_mesh_ == nullptr) {
      CAIRN_TRY_ASSIGN(DeviceMesh world, DeviceMesh::Make({{"world", self_.world_size}}));
      replicated_mesh_ = std::make_shared<const DeviceMesh>(std::move(world));
    } else if (!replicated_mesh_->CoordinateOf(self_.rank)) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("replicated_mesh lacks rank {}, which holds tensors without a sharding",
                      self_.rank));
    }
    const auto group = ReplicaGroup::Whole(*meshes_.Find(replicated_mesh_.get()));
    if (group.MembershipOf(self_.rank).size > 1) replicated_group_ = group;
    return {};
  }

  // Returns the tensors, and sets long_values_.
  Result<std::vector<PlannedTensor>> ReadLeaves(const StateDict& state) {
    CAIRN_TRY_ASSIGN(const std::vector<LeafName> leaves, LeafNames(state, layout_->memory));
    for (const TensorView& view : state.tensors) layout_->AddView(view);
    std::vector<PlannedTensor> tensors;
    tensors.reserve(leaves.size());
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto& [node, fqn] = leaves[i];
      const uint32_t slot = state.slot[i];
      if (!IsTensor(state.tree.nodes[node].kind)) {
        const Value& value = state.values[slot];
        if (self_.rank == 0 && IsLong(value)) long_values_.push_back(LongValue(fqn, value, slot));
        continue;
      }
      if (options_.statistics && state.tensors[slot].device != kHostDevice) {
        return Fail(Error{.code = ErrorCode::kInvalidArgument,
                          .message =
                              "a save does not compute the statistics of tensors in device "
                              "memory; save without them; kv-admin statistics adds them later",
                          .key = std::string(fqn)});
      }
      tensors.push_back({.fqn = fqn,
                         .view = &layout_->views[slot],
                         .sharding = FindSharding(state, slot),
                         .value_slot = {}});
    }
    CAIRN_TRY_ASSIGN(plan_.values, EncodeValues(state, leaves, self_.rank == 0));
    plan_.tensor_count = tensors.size();
    return tensors;
  }

  PlannedTensor LongValue(std::string_view fqn, const Value& value, uint32_t slot) {
    const std::span<const std::byte> bytes = BytesOf(value);
    const TensorView view{.dtype = DType::kUInt8, .shape = {bytes.size()}, .data = bytes.data()};
    return {.fqn = fqn, .view = layout_->AddView(view), .value_slot = slot, .is_hidden = true};
  }

  // Plans tensors in key order.
  Result<SavePlan> PlanTensors(std::span<const PlannedTensor> tensors) {
    layout_->tensors.reserve(tensors.size());
    held_.reserve(tensors.size());
    for (const PlannedTensor& tensor : tensors) {
      if (tensor.sharding == nullptr) {
        AddWhole(tensor);
        continue;
      }
      plan_.has_shards = true;
      Result<void> added = AddSharded(tensor);
      if (!added) return Fail(std::move(added).error().WithKey(tensor.fqn));
    }
    for (const auto& [group, shards] : shards_of_group_) DivideAmong(group, shards);
    layout_->shards.reserve(held_.size());
    layout_->chunks.reserve(held_.size());
    plan_.sources.reserve(held_.size());
    for (const HeldShard& held : held_) {
      if (held.is_own) CAIRN_TRY(AddChunks(held));
    }
    for (const TensorEntry& tensor : layout_->tensors) {
      if (tensor.alias == nullptr) plan_.logical_bytes += tensor.nbytes;
    }
    plan_.layout = layout_;
    return std::move(plan_);
  }

  void AddWhole(const PlannedTensor& tensor) {
    const TensorRef& view = *tensor.view;
    const auto nbytes = TensorBytes(view.dtype, view.shape);
    CAIRN_CHECK(nbytes.has_value());  // SpanOf accepted the tensor
    layout_->tensors.push_back({.fqn = tensor.fqn,
                                .shape = view.shape,
                                .nbytes = *nbytes,
                                .alias = tensor.alias,
                                .dtype = view.dtype,
                                .hidden = tensor.is_hidden});
    if (tensor.alias != nullptr || *nbytes == 0) return;
    AddShard(&view, NewBox({}, view.shape), tensor.value_slot ? ReplicaGroup() : replicated_group_);
    held_.back().shard.value_slot = tensor.value_slot;
  }

  Result<void> AddSharded(const PlannedTensor& tensor) {
    const Sharding& sharding = *tensor.sharding;
    TensorEntry entry{.fqn = tensor.fqn,
                      .shape = layout_->Copy(sharding.global_shape),
                      .dtype = tensor.view->dtype};
    CAIRN_TRY_ASSIGN(entry.nbytes, TensorBytes(entry.dtype, entry.shape));
    ReplicaGroup group;
    std::vector<ShardView> held;
    // A rank that is not on the mesh holds nothing of the tensor.
    if (sharding.mesh == nullptr || sharding.mesh->CoordinateOf(self_.rank)) {
      CAIRN_TRY_ASSIGN(held, ShardViewsOf(sharding, tensor.view->view(), self_.rank));
      for (const ShardView& box : held) CAIRN_TRY(SpanOf(box.view));
      group = ReplicaGroup::Of(sharding, meshes_);
    }
    if (const PlannedTensor* const owner = FindSame(tensor, held)) {
      entry.alias = &layout_->aliases.emplace_back(
          TensorAlias{.owner = owner->fqn, .strides = layout_->Copy(RowMajorStrides(entry.shape))});
      held.clear();
    }
    layout_->tensors.push_back(entry);
    for (const ShardView& shard : held) {
      AddShard(layout_->AddView(shard.view), NewBox(shard.box.offsets, shard.box.sizes), group);
    }
    return {};
  }

  // Returns an earlier tensor that is the same part of the same memory, or null.
  const PlannedTensor* FindSame(const PlannedTensor& tensor, const std::vector<ShardView>& held) {
    if (held.empty()) return nullptr;
    const auto [found, inserted] = first_at_.try_emplace(held.front().view.data, &tensor);
    if (inserted) return nullptr;
    const PlannedTensor& other = *found->second;
    const Sharding& a = *tensor.sharding;
    const Sharding& b = *other.sharding;
    const bool same = tensor.view->dtype == other.view->dtype &&
                      std::ranges::equal(tensor.view->shape, other.view->shape) &&
                      std::ranges::equal(tensor.view->strides, other.view->strides) &&
                      a.mesh != nullptr && b.mesh != nullptr &&
                      meshes_.Find(a.mesh.get()) == meshes_.Find(b.mesh.get()) &&
                      a.global_shape == b.global_shape && a.placements == b.placements;
    return same ? &other : nullptr;
  }

  // Adds a box of the tensor that was added last.
  void AddShard(const TensorRef* view, BoxRef box, const ReplicaGroup& group) {
    const auto length_bytes = TensorBytes(view->dtype, view->shape);
    CAIRN_CHECK(length_bytes.has_value());  // SpanOf accepted the view
    if (group.dims != 0) shards_of_group_[group].push_back(held_.size());
    const auto tensor = static_cast<uint32_t>(layout_->tensors.size() - 1);
    held_.push_back({.shard = {.tensor = tensor, .value_slot = {}, .box = box, .source = view},
                     .length_bytes = *length_bytes});
  }

  // Gives each of the group's tensors to one rank. `shards`: indices into held_.
  void DivideAmong(const ReplicaGroup& group, const std::vector<size_t>& shards) {
    const auto member = group.MembershipOf(self_.rank);
    if (member.size == 1) return;
    // The first key decides which member gets the first shard, so that many groups of few shards do
    // not always burden the same rank.
    const std::string_view first_fqn = layout_->tensors[held_[shards.front()].shard.tensor].fqn;
    const uint64_t rotation = kv::Checksum64(std::as_bytes(std::span(first_fqn))) % member.size;
    const uint64_t self = (member.index + rotation) % member.size;
    std::vector<uint64_t> tensor_bytes;  // bytes per tensor in this group
    std::vector<size_t> tensor_of(shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const HeldShard& held = held_[shards[i]];
      const bool is_new = i == 0 || held_[shards[i - 1]].shard.tensor != held.shard.tensor;
      if (is_new) tensor_bytes.push_back(0);
      tensor_bytes.back() += held.length_bytes;
      tensor_of[i] = tensor_bytes.size() - 1;
    }
    const std::vector<uint64_t> owners = BalancedOwners(tensor_bytes, member.size);
    for (size_t i = 0; i < shards.size(); ++i) {
      held_[shards[i]].is_own = owners[tensor_of[i]] == self;
    }
  }

  // Adds the chunks of a shard that this rank writes.
  Result<void> AddChunks(const HeldShard& held) {
    PlannedShard& shard = layout_->shards.emplace_back(held.shard);
    TensorEntry& tensor = layout_->tensors[shard.tensor];
    std::vector<ShardChunk>& chunks = layout_->chunks;
    shard.first_chunk = chunks.size();
    if (held.length_bytes == tensor.nbytes && held.length_bytes <= options_.chunk_bytes) {
      // Most tensors of most states; a grid would allocate memory.
      chunks.push_back({.box = shard.box, .length_bytes = held.length_bytes});
    } else {
      const auto offsets = shard.box.offsets(), sizes = shard.box.sizes();
      Box box{.offsets = {offsets.begin(), offsets.end()}, .sizes = {sizes.begin(), sizes.end()}};
      CAIRN_TRY_ASSIGN(const ChunkGrid grid,
                       ChunkGrid::Make(tensor.dtype, std::move(box), options_.chunk_bytes));
      for (uint64_t i = 0; i < grid.chunk_count(); ++i) {
        const Box chunk = grid.chunk(i);
        chunks.push_back({.box = NewBox(chunk.offsets, chunk.sizes),
                          .begin_bytes = grid.offset_bytes(i),
                          .length_bytes = grid.length_bytes(i)});
      }
    }
    shard.end_chunk = chunks.size();
    tensor.chunk_count += shard.end_chunk - shard.first_chunk;
    plan_.own_bytes += held.length_bytes;
    plan_.sources.push_back({.data = shard.source->data});
    return {};
  }

  BoxRef NewBox(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes) {
    const std::span<uint64_t> numbers = layout_->memory.Numbers(2 * sizes.size());
    const auto [_, end] = std::ranges::copy(offsets, numbers.begin());
    std::fill(end, numbers.begin() + static_cast<ptrdiff_t>(sizes.size()), 0);
    std::ranges::copy(sizes, numbers.last(sizes.size()).begin());
    return {numbers};
  }

  const SaveOptions& options_;
  const RankInWorld self_;
  std::shared_ptr<const DeviceMesh> replicated_mesh_;  // shared with the options, or created here
  EqualMeshes meshes_;
  ReplicaGroup replicated_group_;
  std::vector<PlannedTensor> long_values_;                               // only on rank 0
  std::shared_ptr<PlanLayout> layout_ = std::make_shared<PlanLayout>();  // shared with plan_
  SavePlan plan_;
  std::vector<HeldShard> held_;
  // Indices into held_, in key order, of the shards that several ranks hold.
  std::map<ReplicaGroup, std::vector<size_t>> shards_of_group_;
  std::map<const std::byte*, const PlannedTensor*> first_at_;  // by the address of their memory
};

}  // namespace

Result<void> CheckSaveOptions(const SaveOptions& options) {
  if (options.chunk_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument, "chunk_bytes is 0; give at least 1");
  }
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

Result<std::vector<NamedRecord>> EncodeValues(const StateDict& state,
                                              std::span<const LeafName> leaves,
                                              bool long_as_chunks) {
  std::vector<NamedRecord> values;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (IsTensor(state.tree.nodes[leaves[i].node].kind)) continue;
    const Value& value = state.values[state.slot[i]];
    const std::string fqn(leaves[i].fqn);
    if (long_as_chunks && std::holds_alternative<ChunkedValue>(value)) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "a value without its bytes; read them with LoadValues",
                        .key = fqn});
    }
    auto record = long_as_chunks && IsLong(value) ? EncodeLong(value) : EncodeValue(value);
    if (!record) return Fail(std::move(record).error().WithKey(fqn));
    values.emplace_back(fqn, *std::move(record));
  }
  std::ranges::sort(values, {}, &NamedRecord::first);
  return values;
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
  plan.compared_chunk.reset();
  for (ShardSource& source : plan.sources) source.is_stated_unchanged = false;
  if (options.unchanged.empty()) return {};
  CAIRN_TRY_ASSIGN(const KeyPatterns patterns, KeyPatterns::Parse(options.unchanged));
  // Whether a key is escaped depends on other keys, so in the base step, one of several leaves with
  // the same texts may have the name of another one.
  std::unordered_map<std::string, size_t> leaves_by_texts;
  for (const TensorEntry& tensor : plan.tensors()) {
    if (!tensor.hidden) ++leaves_by_texts[JoinedTexts(tensor.fqn)];
  }
  for (const auto& [fqn, record] : plan.values) ++leaves_by_texts[JoinedTexts(fqn)];
  std::vector<bool> matches(plan.tensors().size());
  for (size_t i = 0; i < matches.size(); ++i) {
    const std::string_view fqn = plan.tensors()[i].fqn;
    matches[i] = patterns.Matches(fqn) && leaves_by_texts[JoinedTexts(fqn)] <= 1;
  }
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    const PlannedShard& shard = plan.shards()[i];
    // Devices digest their tensors at the rate of their memory. Values are always compared.
    plan.sources[i].is_stated_unchanged =
        matches[shard.tensor] && !shard.on_device() && !shard.value_slot.has_value();
  }
  ChooseComparedChunk(plan, step);
  return {};
}

void UnmarkRenamed(SavePlan& plan, const StepView& base, uint64_t step, TreeCache& trees) {
  if (std::ranges::none_of(plan.sources, &ShardSource::is_stated_unchanged)) return;
  if (kv::PayloadDigest(plan.layout->structure) == base.step.structure) return;
  const auto tree = trees.Find(base);
  if (tree && !(*tree)->has_forms()) return;
  const auto texts = FindEscapedTexts(base);
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    const std::string_view fqn = plan.tensors()[plan.shards()[i].tensor].fqn;
    if (texts && !texts->contains(JoinedTexts(fqn))) continue;
    plan.has_lost_marks |= plan.sources[i].is_stated_unchanged;
    plan.sources[i].is_stated_unchanged = false;
  }
  ChooseComparedChunk(plan, step);
}

void ChooseComparedChunk(SavePlan& plan, uint64_t step) {
  plan.compared_chunk.reset();
  const auto stated_chunks = [&](size_t i) {
    const PlannedShard& shard = plan.shards()[i];
    return plan.sources[i].is_stated_unchanged ? shard.end_chunk - shard.first_chunk : 0;
  };
  uint64_t chunks = 0;
  for (size_t i = 0; i < plan.sources.size(); ++i) chunks += stated_chunks(i);
  if (chunks == 0) return;
  uint64_t compared = step % chunks;
  size_t shard = 0;
  for (; compared >= stated_chunks(shard); ++shard) compared -= stated_chunks(shard);
  plan.compared_chunk = plan.shards()[shard].first_chunk + compared;
}

Error NotUnchangedError(std::string_view fqn) {
  return {.code = ErrorCode::kInvalidArgument,
          .message =
              "the tensor differs from the base step, but `unchanged` states that it does not;"
              " nothing was saved",
          .key = std::string(fqn)};
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
