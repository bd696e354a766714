// Contents are converted without reading payload. A load is divided into requests for the stored
// tensors, whose targets are strided views of the caller's.

#include "core/convert/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/checkpoint_store.h"
#include "core/convert/internal/block_scale.h"
#include "core/convert/internal/renamed_tree.h"
#include "core/step/internal/tensor_records.h"

namespace cairn::core {
namespace {

constexpr size_t kNone = ~size_t{0};

template <typename Info>
const Info* Find(const std::vector<Info>& infos, std::string_view fqn) {
  const auto found = std::ranges::lower_bound(infos, fqn, {}, &Info::fqn);
  return found == infos.end() || found->fqn != fqn ? nullptr : &*found;
}

Result<std::vector<SourceKey>> SourcesOf(const Contents& contents) {
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(contents.tree));
  std::vector<SourceKey> sources;
  sources.reserve(leaves.size());
  for (const Leaf& leaf : leaves) {
    SourceKey source{.fqn = leaf.fqn, .shape = {}};
    source.is_tensor = IsTensor(contents.tree.nodes[leaf.node].kind);
    if (source.is_tensor) {
      const TensorInfo* const info = Find(contents.tensors, leaf.fqn);
      if (info == nullptr) {
        return Fail(Error{.code = ErrorCode::kDataLoss,
                          .message = "the step's structure has a leaf without a record",
                          .key = leaf.fqn,
                          .step = contents.step.step});
      }
      source.dtype = info->dtype;
      source.shape = info->shape;
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

// Keeps the keys that patterns match, and the part of the tree that leads to them.
Result<StateTree> Select(StateTree tree, const KeyPatterns& patterns,
                         std::vector<ConvertedKey>& keys) {
  if (patterns.matches_everything()) return tree;
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(tree));
  std::vector<bool> keep;
  for (const Leaf& leaf : leaves) keep.push_back(patterns.Matches(leaf.fqn));
  std::erase_if(keys, [&](const ConvertedKey& key) { return !patterns.Matches(key.fqn); });
  return PruneTree(tree, keep);
}

bool IsBox(const IndexMap& map) {
  std::vector<bool> has_axis(map.source_offsets.size());
  for (const IndexAxis& axis : map.axes) {
    if (axis.source_step != 1 || has_axis[axis.source_dim]) return false;
    has_axis[axis.source_dim] = true;
  }
  return true;
}

}  // namespace

Result<Conversion> Conversion::Make(Contents stored, const ConversionRules& rules,
                                    const KeyCasts& casts, const KeyPatterns& patterns) {
  Conversion made;
  CAIRN_TRY_ASSIGN(made.sources_, SourcesOf(stored));
  auto converted = ConvertKeys(made.sources_, rules, casts);
  if (!converted) return Fail(std::move(converted).error().WithStep(stored.step.step));
  std::vector<ConvertedKey> keys = *std::move(converted);
  CAIRN_TRY_ASSIGN(StateTree tree, internal::RenamedTree(stored.tree, keys));
  CAIRN_TRY_ASSIGN(made.contents_.tree, Select(std::move(tree), patterns, keys));
  CAIRN_TRY(FlattenTree(made.contents_.tree));
  made.contents_.step = stored.step;
  std::ranges::sort(keys, {}, &ConvertedKey::fqn);
  for (const ConvertedKey& key : keys) {
    if (key.is_tensor) continue;
    const ValueInfo* const value = Find(stored.values, made.sources_[key.source].fqn);
    if (value == nullptr) return Fail(ErrorCode::kDataLoss, "a value of the step has no record");
    made.contents_.values.push_back({key.fqn, value->value});
  }
  std::erase_if(keys, [](const ConvertedKey& key) { return !key.is_tensor; });
  made.AddTensors(stored, std::move(keys));
  made.stored_ = std::move(stored.tensors);
  return made;
}

void Conversion::AddTensors(const Contents& stored, std::vector<ConvertedKey> keys) {
  std::vector<size_t> whole_keys(sources_.size(), kNone);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].is_whole) whole_keys[keys[i].source] = i;
  }
  std::map<std::string_view, size_t> hidden;  // owners that aliases still need
  std::vector<std::pair<TensorInfo, ConvertedKey>> made;
  for (const ConvertedKey& key : keys) {
    TensorInfo info{.fqn = key.fqn,
                    .dtype = key.dtype,
                    .shape = key.shape,
                    .alias_of = {},
                    .alias_strides = {}};
    info.nbytes = schema::ElementBytes(key.dtype);
    for (const uint64_t size : key.shape) info.nbytes *= size;
    const TensorInfo& source = *Find(stored.tensors, sources_[key.source].fqn);
    if (key.is_whole && source.alias_of) {
      if (auto alias = AliasOf(source, key, whole_keys, keys)) info = *std::move(alias);
      const TensorInfo* const owner =
          info.alias_of ? Find(stored.tensors, *source.alias_of) : nullptr;
      if (owner != nullptr && owner->hidden) hidden.try_emplace(owner->fqn, 0);
    }
    made.emplace_back(std::move(info), key);
  }
  for (auto& [fqn, source] : hidden) {
    const TensorInfo& info = *Find(stored.tensors, fqn);
    source = sources_.size();
    sources_.push_back({info.fqn, true, info.dtype, info.shape});
    ConvertedKey key{.fqn = info.fqn,
                     .is_tensor = true,
                     .source = source,
                     .dtype = info.dtype,
                     .shape = info.shape,
                     .pieces = {{.source = source, .map = IdentityMap(info.shape), .scale = {}}}};
    made.emplace_back(info, std::move(key));
  }
  std::ranges::sort(made, {},
                    [](const auto& each) -> const std::string& { return each.first.fqn; });
  for (auto& [info, key] : made) {
    contents_.tensors.push_back(std::move(info));
    keys_.push_back(std::move(key));
  }
}

// Returns the record of a tensor that still shares the bytes of its owner; nothing if the owner was
// converted in another way.
std::optional<TensorInfo> Conversion::AliasOf(const TensorInfo& stored, const ConvertedKey& key,
                                              std::span<const size_t> whole_keys,
                                              std::span<const ConvertedKey> keys) const {
  TensorInfo info = stored;
  info.fqn = key.fqn;
  const auto owner = std::ranges::find(sources_, *stored.alias_of, &SourceKey::fqn);
  if (owner == sources_.end()) {  // hidden
    return key.dtype == stored.dtype ? std::optional(std::move(info)) : std::nullopt;
  }
  const size_t owner_key = whole_keys[static_cast<size_t>(owner - sources_.begin())];
  if (owner_key == kNone) return std::nullopt;
  info.alias_of = keys[owner_key].fqn;
  if (key.dtype == stored.dtype && keys[owner_key].dtype == owner->dtype) return info;
  const uint64_t element_bytes = schema::ElementBytes(stored.dtype);
  const bool is_cast_alike = owner->dtype == stored.dtype && keys[owner_key].dtype == key.dtype &&
                             stored.alias_offset_bytes % element_bytes == 0;
  if (!is_cast_alike) return std::nullopt;
  info.dtype = key.dtype;
  info.alias_offset_bytes =
      stored.alias_offset_bytes / element_bytes * schema::ElementBytes(key.dtype);
  info.nbytes = stored.nbytes / element_bytes * schema::ElementBytes(key.dtype);
  return info;
}

// The requests for stored tensors that fill the targets of requests for converted ones.
class Conversion::Expansion {
 public:
  explicit Expansion(const Conversion& conversion) : conversion_(conversion) {}

  Result<void> Add(const LoadRequest& request) {
    const TensorInfo* const info = Find(conversion_.contents_.tensors, request.fqn);
    if (info == nullptr) {
      return Fail(Error{.code = ErrorCode::kNotFound,
                        .message = "the rules make no such tensor",
                        .key = request.fqn,
                        .step = conversion_.contents_.step.step});
    }
    const auto index = static_cast<size_t>(info - conversion_.contents_.tensors.data());
    const ConvertedKey& key = conversion_.keys_[index];
    CAIRN_TRY(Check(request, *info));
    TensorTarget target = request.target;
    if (target.strides.empty()) target.strides = RowMajorStrides(target.shape);
    for (const SourcePiece& piece : key.pieces) {
      for (IndexMap& part : ClipTarget(piece.map, request.box)) {
        AddPart(piece, std::move(part), request.box, target);
      }
    }
    return {};
  }

  std::span<const LoadRequest> requests() const { return requests_; }

  /// Multiplies by the factors of blocks, after the load. Loads the factors.
  Result<void> Scale(const CheckpointStore& store) const {
    std::map<size_t, std::vector<float>> factors;
    std::vector<LoadRequest> loads;
    for (const internal::ScaledPart& part : scaled_) {
      const auto [found, is_new] = factors.try_emplace(part.scale.source);
      if (!is_new) continue;
      const SourceKey& source = conversion_.sources_[part.scale.source];
      found->second.resize(source.shape[0] * source.shape[1]);
      loads.push_back({.fqn = source.fqn,
                       .box = WholeBox(source.shape),
                       .target = {.dtype = source.dtype,
                                  .shape = source.shape,
                                  .strides = {},
                                  .data = reinterpret_cast<std::byte*>(found->second.data())}});
    }
    if (loads.empty()) return {};
    CAIRN_TRY(store.Load(conversion_.contents_.step, loads, {}, {}, conversion_.stored_));
    for (const internal::ScaledPart& part : scaled_) {
      internal::MultiplyBlocks(part, factors[part.scale.source]);
    }
    return {};
  }

 private:
  static Result<void> Check(const LoadRequest& request, const TensorInfo& info) {
    std::string wrong;
    if (request.target.dtype != info.dtype) {
      wrong = fmt::format("the target is {}, the converted tensor {}",
                          schema::DTypeName(request.target.dtype), schema::DTypeName(info.dtype));
    } else if (!BoxFits(request.box, info.shape) || request.target.shape != request.box.sizes) {
      wrong = fmt::format(
          "a box at {} of sizes {} with a target of shape {} does not fit the "
          "converted shape {}",
          internal::FormatNumbers(request.box.offsets), internal::FormatNumbers(request.box.sizes),
          internal::FormatNumbers(request.target.shape), internal::FormatNumbers(info.shape));
    } else if (const auto checked = CheckStrides(request.target.shape, request.target.strides);
               !checked) {
      wrong = "the target has " + checked.error().message;
    }
    if (wrong.empty()) return {};
    return Fail(Error{
        .code = ErrorCode::kInvalidArgument, .message = std::move(wrong), .key = request.fqn});
  }

  void AddPart(const SourcePiece& piece, IndexMap part, const Box& box,
               const TensorTarget& target) {
    const SourceKey& source = conversion_.sources_[piece.source];
    Box bounds = TargetBounds(part);
    for (size_t d = 0; d < bounds.offsets.size(); ++d) bounds.offsets[d] -= box.offsets[d];
    // Requests of one load do not overlap, so each gets only its part of the target.
    const TensorTarget narrowed = Narrow(target, bounds);
    std::ranges::fill(part.target_offsets, 0);
    LoadRequest& request = requests_.emplace_back();
    request.fqn = source.fqn;
    request.box = SourceBounds(part);
    request.cast = target.dtype != source.dtype;
    if (piece.scale) scaled_.push_back({part, narrowed, *piece.scale, source.shape});
    if (!IsBox(part)) {
      request.target = narrowed;
      request.map = std::move(part);
      return;
    }
    request.target = narrowed;
    request.target.shape = request.box.sizes;
    request.target.strides.assign(request.box.sizes.size(), 1);
    for (const IndexAxis& axis : part.axes) {
      request.target.strides[axis.source_dim] =
          axis.target_step * narrowed.strides[axis.target_dim];
    }
    if (IsContiguous(request.target.shape, request.target.strides)) request.target.strides.clear();
  }

  const Conversion& conversion_;
  std::vector<LoadRequest> requests_;
  std::vector<internal::ScaledPart> scaled_;
};

Result<LoadReport> Conversion::Load(const CheckpointStore& store,
                                    std::span<const LoadRequest> requests, const Progress& progress,
                                    std::span<const DeviceStream> streams) const {
  Expansion expansion(*this);
  for (const LoadRequest& request : requests) CAIRN_TRY(expansion.Add(request));
  CAIRN_TRY_ASSIGN(const LoadReport report,
                   store.Load(contents_.step, expansion.requests(), progress, streams, stored_));
  CAIRN_TRY(expansion.Scale(store));
  return report;
}

Result<LoadReport> Conversion::LoadShards(const CheckpointStore& store,
                                          std::span<const ShardTarget> targets, uint32_t rank,
                                          const Progress& progress,
                                          std::span<const DeviceStream> streams) const {
  std::vector<LoadRequest> requests;
  for (const ShardTarget& target : targets) {
    if (target.sharding == nullptr) {
      requests.push_back(
          {.fqn = target.fqn, .box = WholeBox(target.local.shape), .target = target.local});
      continue;
    }
    const TensorInfo* const info = Find(contents_.tensors, target.fqn);
    if (info != nullptr && info->shape != target.sharding->global_shape) {
      return Fail(
          Error{.code = ErrorCode::kInvalidArgument,
                .message = fmt::format("the target's global shape is {}, the converted one {}",
                                       internal::FormatNumbers(target.sharding->global_shape),
                                       internal::FormatNumbers(info->shape)),
                .key = target.fqn});
    }
    // A rank that is not on the mesh holds nothing of the tensor.
    if (target.sharding->mesh != nullptr && !target.sharding->mesh->CoordinateOf(rank)) continue;
    const TensorView local{target.local.dtype, target.local.shape, target.local.strides,
                           target.local.data, target.local.device};
    auto views = ShardViewsOf(*target.sharding, local, rank);
    if (!views) return Fail(std::move(views).error().WithKey(target.fqn));
    for (const ShardView& view : *views) {
      // The memory is that of a target, so that it may be written.
      requests.push_back({.fqn = target.fqn,
                          .box = view.box,
                          .target = {view.view.dtype, view.view.shape, view.view.strides,
                                     const_cast<std::byte*>(view.view.data), view.view.device}});
    }
  }
  return Load(store, requests, progress, streams);
}

}  // namespace cairn::core
