#include "core/save/internal/rank_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "core/state_dict/value.h"
#include "core/step/internal/tensor_records.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {
namespace {

std::string NameInfo(const TensorInfo& info) {
  std::string name = fmt::format("{} {}", schema::DTypeName(info.dtype), FormatNumbers(info.shape));
  if (!info.alias_of) return name;
  return fmt::format("{} in the memory of '{}' (from byte {}, strides {})", name, *info.alias_of,
                     info.alias_offset_bytes, FormatNumbers(info.alias_strides));
}

std::string NameBoxOf(uint32_t rank, std::span<const uint64_t> offsets,
                      std::span<const uint64_t> sizes) {
  return fmt::format("rank {}'s box at {} of sizes {}", rank, FormatNumbers(offsets),
                     FormatNumbers(sizes));
}

std::unexpected<Error> Invalid(const TensorInfo& info, std::string message) {
  return Fail(
      Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = info.fqn});
}

}  // namespace

Result<void> RankMerge::AddOwn(const SavePlan& plan) {
  const size_t first = tensors_.size();
  TensorEncoder encoder;
  for (TensorEntry tensor : plan.tensors()) {
    tensor.chunk_count = 0;
    CAIRN_TRY_ASSIGN(TensorInfo info, DecodeTensor(tensor.fqn, encoder.Encode(tensor)));
    AddTensor(0, std::move(info));
  }
  if (tensors_.size() - first != plan.tensors().size()) {
    return Fail(ErrorCode::kInvalidArgument, "two portions of a step have a tensor in common");
  }
  for (const PlannedShard& shard : plan.shards()) {
    Tensor& tensor = tensors_[first + shard.tensor];
    for (const ShardChunk& chunk : plan.layout->ChunksOf(shard)) {
      tensor.boxes.Add(chunk.box.offsets(), chunk.box.sizes());
      tensor.box_ranks.push_back(0);
    }
  }
  for (const auto& [fqn, record] : plan.values) values_.try_emplace(fqn, record);
  CAIRN_TRY_ASSIGN(const StateTree tree, DecodeTree(plan.layout->structure));
  return tree_.Add(tree);
}

Result<void> RankMerge::AddShared(uint32_t rank, kv::Column column, std::string_view key,
                                  std::span<const std::byte> record) {
  switch (column) {
    case kv::Column::kTensors: {
      CAIRN_TRY_ASSIGN(const kv::ParsedKey parsed, kv::ParseKey(key));
      CAIRN_TRY_ASSIGN(TensorInfo info, DecodeTensor(parsed.fqn, record));
      AddTensor(rank, std::move(info));
      return {};
    }
    case kv::Column::kValues: {
      CAIRN_TRY_ASSIGN(const kv::ParsedKey parsed, kv::ParseKey(key));
      const auto [_, is_new] =
          values_.try_emplace(std::string(parsed.fqn), record.begin(), record.end());
      if (!is_new) return {};
      CAIRN_TRY_ASSIGN(const Value value, DecodeValue(record));
      if (!std::holds_alternative<ChunkedValue>(value)) return {};
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = fmt::format("rank {} left its bytes to rank 0, which lacks it; "
                                               "read them with LoadValues",
                                               rank),
                        .key = std::string(parsed.fqn)});
    }
    case kv::Column::kStructures: {
      CAIRN_TRY_ASSIGN(const StateTree tree, DecodeTree(record));
      return AddTree(tree);
    }
    default:
      return Fail(ErrorCode::kDataLoss,
                  fmt::format("rank {} wrote a record of column {}, which cannot be merged", rank,
                              static_cast<int>(column)));
  }
}

void RankMerge::AddTensor(uint32_t rank, TensorInfo info) {
  const auto [found, inserted] = by_fqn_.try_emplace(info.fqn, tensors_.size());
  if (inserted) {
    tensors_.emplace_back(std::move(info));
    tensors_.back().rank = rank;
    if (tensors_.back().info.alias_of) tensors_.back().alias_rank = rank;
    return;
  }
  Tensor& known = tensors_[found->second];
  // A rank that holds nothing of a tensor does not know that it shares memory.
  const bool same_memory = !info.alias_of || !known.info.alias_of ||
                           (known.info.alias_of == info.alias_of &&
                            known.info.alias_offset_bytes == info.alias_offset_bytes &&
                            known.info.alias_strides == info.alias_strides);
  if (known.info.dtype != info.dtype || known.info.shape != info.shape ||
      known.info.hidden != info.hidden || !same_memory) {
    if (disagreement_) return;
    disagreement_ =
        Disagreement{.tensor = found->second, .rank = rank, .info = std::move(info), .box = {}};
  } else if (info.alias_of && !known.info.alias_of) {
    known.info = std::move(info);
    known.alias_rank = rank;
  }
}

Result<void> RankMerge::AddTree(const StateTree& tree) {
  if (tree_error_) return {};
  Result<void> added = tree_.Add(tree);
  if (!added) tree_error_ = std::move(added).error();
  return {};
}

bool RankMerge::FindTensor(std::string_view fqn) {
  // Ranks write the chunks of their tensors in the order of the tensors.
  for (size_t i = last_; i < std::min(last_ + 2, tensors_.size()); ++i) {
    if (tensors_[i].info.fqn != fqn) continue;
    last_ = i;
    return true;
  }
  const auto found = by_fqn_.find(std::string(fqn));
  if (found == by_fqn_.end()) return false;
  last_ = found->second;
  return true;
}

Result<void> RankMerge::AddChunk(const kv::RankChunk& chunk) {
  const auto& [rank, fqn, length_bytes, offsets, sizes] = chunk;
  if (!FindTensor(fqn)) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("rank {} wrote a chunk without its tensor", rank),
                      .key = std::string(fqn)});
  }
  Tensor& tensor = tensors_[last_];
  if (disagreement_ && disagreement_->tensor == last_ && disagreement_->rank == rank) {
    if (!disagreement_->box) {
      disagreement_->box =
          Box{.offsets = {offsets.begin(), offsets.end()}, .sizes = {sizes.begin(), sizes.end()}};
    }
    return {};
  }
  const auto bytes = TensorBytes(tensor.info.dtype, sizes);
  if (sizes.size() == tensor.info.shape.size() && bytes && *bytes == length_bytes) {
    tensor.boxes.Add(offsets, sizes);
    tensor.box_ranks.push_back(rank);
    return {};
  }
  // The rank has the same state as one that disagrees; otherwise the record is damaged.
  if (disagreement_) return {};
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("{} is not one of {}", NameBoxOf(rank, offsets, sizes),
                                           NameInfo(tensor.info)),
                    .key = tensor.info.fqn});
}

std::string RankMerge::NameBox(const Tensor& tensor, size_t i) const {
  return NameBoxOf(tensor.box_ranks[i], tensor.boxes.offsets(i), tensor.boxes.sizes(i));
}

Error RankMerge::Describe(const Disagreement& disagreement) const {
  const Tensor& tensor = tensors_[disagreement.tensor];
  std::string boxes;
  for (size_t i = 0; i < tensor.box_ranks.size() && boxes.empty(); ++i) {
    if (tensor.box_ranks[i] == tensor.rank) boxes = "; " + NameBox(tensor, i);
  }
  if (disagreement.box) {
    boxes +=
        "; " + NameBoxOf(disagreement.rank, disagreement.box->offsets, disagreement.box->sizes);
  }
  return Error{
      .code = ErrorCode::kInvalidArgument,
      .message = fmt::format("rank {} holds it as {}, rank {} as {}{}",
                             tensor.alias_rank.value_or(tensor.rank), NameInfo(tensor.info),
                             disagreement.rank, NameInfo(disagreement.info), boxes),
      .key = tensor.info.fqn};
}

// Checks that no hidden tensor is the bytes of a value on one rank and shared memory on another.
Result<void> RankMerge::CheckNames() const {
  for (const Tensor& tensor : tensors_) {
    const TensorInfo& info = tensor.info;
    if (!info.alias_of || !values_.contains(*info.alias_of)) continue;
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = fmt::format("on rank {} it is the name of memory that tensors "
                                             "share, on another rank a value; rename it",
                                             *tensor.alias_rank),
                      .key = *info.alias_of});
  }
  return {};
}

Result<void> RankMerge::CheckTensor(const Tensor& tensor) const {
  const TensorInfo& info = tensor.info;
  if (info.alias_of) {
    if (tensor.box_ranks.empty()) return {};
    return Invalid(
        info, fmt::format("on rank {} it shares the memory of '{}', but {} was written separately",
                          *tensor.alias_rank, *info.alias_of, NameBox(tensor, 0)));
  }
  const auto flaw = FindTilingFlaw(info.shape, tensor.boxes);
  if (!flaw) return {};
  std::vector<std::string> boxes;
  for (const size_t i : flaw->boxes) boxes.push_back(NameBox(tensor, i));
  const std::string named = fmt::format("{}", fmt::join(boxes, ", "));
  switch (flaw->kind) {
    case TilingFlaw::Kind::kOutside:
      return Invalid(info, fmt::format("{} leaves the shape {}", named, FormatNumbers(info.shape)));
    case TilingFlaw::Kind::kOverlap:
      return Invalid(info,
                     fmt::format("element {} is written by more than one: {}; give every rank "
                                 "the same mesh and placements",
                                 FormatNumbers(flaw->element), named));
    case TilingFlaw::Kind::kGap:
      break;
  }
  return Invalid(
      info, fmt::format("no rank wrote element {} of shape {}, as rank {} has it; {} boxes "
                        "were written{}{}. Every rank of its mesh (without a sharding: "
                        "every rank, or those of replicated_mesh) must hold it",
                        FormatNumbers(flaw->element), FormatNumbers(info.shape), tensor.rank,
                        tensor.box_ranks.size(), tensor.box_ranks.empty() ? "" : ", the first ",
                        tensor.box_ranks.empty() ? "" : NameBox(tensor, 0)));
}

// Checks that each key is one leaf of one kind: what is committed must be loadable as one state.
Result<void> RankMerge::CheckLeaves(const StateTree& tree) const {
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(tree));
  for (const Leaf& leaf : leaves) {
    const auto tensor = by_fqn_.find(leaf.fqn);
    const bool is_tensor = tensor != by_fqn_.end() && !tensors_[tensor->second].info.hidden;
    const bool is_value = values_.contains(leaf.fqn);
    if (IsTensor(tree.nodes[leaf.node].kind) == is_tensor && is_value != is_tensor) continue;
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "it is a tensor on one rank and a value on another",
                      .key = leaf.fqn});
  }
  return {};
}

Result<MergedStep> RankMerge::Finish() {
  CAIRN_TRY(CheckNames());
  // Before the disagreement: a long value is not a tensor of uint8 for users.
  if (tree_error_) return Fail(*tree_error_);
  if (disagreement_) return Fail(Describe(*disagreement_));
  for (const Tensor& tensor : tensors_) CAIRN_TRY(CheckTensor(tensor));
  MergedStep merged;
  merged.tree = tree_.Take();
  CAIRN_TRY(CheckLeaves(merged.tree));
  for (Tensor& tensor : tensors_) {
    tensor.info.chunk_count = tensor.box_ranks.size();
    if (!tensor.info.alias_of) merged.logical_bytes += tensor.info.nbytes;
    if (!tensor.info.hidden) ++merged.tensor_count;
    merged.tensors.push_back(std::move(tensor.info));
  }
  std::ranges::sort(merged.tensors, {}, &TensorInfo::fqn);
  merged.values.assign(std::make_move_iterator(values_.begin()),
                       std::make_move_iterator(values_.end()));
  std::ranges::sort(merged.values, {}, &NamedRecord::first);
  return merged;
}

}  // namespace cairn::core::internal
