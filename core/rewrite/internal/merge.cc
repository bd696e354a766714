// A merge, step by step:
//
// 1. The records of all steps are compared, which decides how each tensor is computed.
// 2. The chunks of the last step are visited in key order. A chunk that is not computed, or that
//    all steps have with the same digest, becomes a reference. Others are collected in windows of
//    bounded size (mean.h), for which the same boxes are read of one step after the other. A
//    chunk longer than a window is computed part by part while it is appended.
// 3. The records of tensors, values and structure come from the last step. Until the commit,
//    nothing of the new step is visible.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/inspect/internal/list.h"
#include "core/rewrite/internal/mean.h"
#include "core/rewrite/internal/rewrite.h"
#include "core/state_dict/value.h"
#include "core/step/application_records.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/chunk_grid.h"
#include "kv/base/key.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"
#include "kv/step_writer.h"

namespace cairn::core::internal {
namespace {

struct MergePlan {
  Contents contents;            // contents of the last step, and of the new one
  std::vector<MeanKind> kinds;  // by tensor of `contents`; an alias has its owner's kind
};

constexpr size_t kMaxNamed = 5;  // limit of named keys that a step does not have

/// A key, and whether it is a tensor.
using NamedLeaf = std::pair<std::string, bool>;

std::vector<NamedLeaf> LeavesOf(const Contents& contents) {
  std::vector<NamedLeaf> leaves;
  for (const TensorInfo& tensor : contents.tensors) {
    if (!tensor.hidden) leaves.emplace_back(tensor.fqn, true);
  }
  for (const ValueInfo& value : contents.values) leaves.emplace_back(value.fqn, false);
  std::ranges::sort(leaves);
  return leaves;
}

Error Differs(std::string message, const std::string& key, uint64_t step) {
  return {
      .code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = key, .step = step};
}

/// kInvalidArgument: `leaves` has keys that `others` lacks.
Result<void> CheckMissing(const std::vector<NamedLeaf>& leaves, uint64_t step,
                          const std::vector<NamedLeaf>& others, uint64_t other_step) {
  std::vector<NamedLeaf> missing;
  std::ranges::set_difference(leaves, others, std::back_inserter(missing));
  if (missing.empty()) return {};
  std::string names;
  for (size_t i = 0; i < std::min(missing.size(), kMaxNamed); ++i) {
    names += fmt::format("{}{}", i == 0 ? "" : ", ", missing[i].first);
  }
  if (missing.size() > kMaxNamed) {
    names += fmt::format(" and {} more", missing.size() - kMaxNamed);
  }
  return Fail(
      Differs(fmt::format("steps can be merged only if they have the same keys; step {} "
                          "lacks these {} of step {}: {}",
                          other_step, missing.front().second ? "tensors" : "values", step, names),
              missing.front().first, other_step));
}

/// Checks a tensor of the last step against the tensor of another step.
Result<void> CheckTensor(const TensorInfo& last, const TensorInfo* other, uint64_t other_step) {
  // Only hidden tensors may be missing: CheckMissing has compared the others.
  if (other == nullptr) {
    return Fail(Differs("tensors that share memory in the last step do not in this one", last.fqn,
                        other_step));
  }
  if (other->dtype != last.dtype || other->shape != last.shape) {
    return Fail(Differs(fmt::format("the tensor is {} {} in this step, and {} {} in the last one",
                                    schema::DTypeName(other->dtype), FormatNumbers(other->shape),
                                    schema::DTypeName(last.dtype), FormatNumbers(last.shape)),
                        last.fqn, other_step));
  }
  const bool shares_same =
      other->alias_of == last.alias_of && other->alias_offset_bytes == last.alias_offset_bytes &&
      other->alias_strides == last.alias_strides && other->hidden == last.hidden;
  if ((last.alias_of || last.hidden) && !shares_same) {
    return Fail(
        Differs("the tensor shares memory with others in the last step, and not in the "
                "same way in this one",
                last.fqn, other_step));
  }
  return {};
}

Result<void> CheckStep(const Contents& last, const Contents& other) {
  const uint64_t step = last.step.step, other_step = other.step.step;
  const std::vector<NamedLeaf> leaves = LeavesOf(last), others = LeavesOf(other);
  CAIRN_TRY(CheckMissing(leaves, step, others, other_step));
  CAIRN_TRY(CheckMissing(others, other_step, leaves, step));
  for (const TensorInfo& tensor : last.tensors) {
    const auto value = std::ranges::lower_bound(last.values, tensor.fqn, {}, &ValueInfo::fqn);
    if (value != last.values.end() && HasBytesOf(tensor, *value)) continue;
    CAIRN_TRY(CheckTensor(tensor, FindByName(other.tensors, tensor.fqn), other_step));
  }
  return {};
}

/// Decides how the bytes of each owner are computed: all tensors that share them decide together.
Result<std::vector<MeanKind>> DecideKinds(const Contents& contents) {
  const std::vector<TensorInfo>& tensors = contents.tensors;
  std::vector<std::optional<MeanKind>> decided(tensors.size());
  const auto owner_of = [&](size_t i) -> Result<size_t> {
    if (!tensors[i].alias_of) return i;
    const TensorInfo* const owner = FindByName(tensors, *tensors[i].alias_of);
    if (owner != nullptr && !owner->alias_of) return static_cast<size_t>(owner - tensors.data());
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the tensor shares the bytes of a tensor that does not exist",
                      .key = tensors[i].fqn,
                      .step = contents.step.step});
  };
  std::vector<size_t> owners(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    CAIRN_TRY_ASSIGN(owners[i], owner_of(i));
    if (tensors[i].hidden) continue;  // bytes of other tensors, with any dtype
    const MeanKind kind = MeanKindOf(tensors[i].dtype);
    std::optional<MeanKind>& common = decided[owners[i]];
    const uint64_t number_bytes = std::max<uint64_t>(NumberBytes(kind), 1);
    const bool is_aligned = tensors[i].alias_offset_bytes % number_bytes == 0 &&
                            tensors[owners[i]].nbytes % number_bytes == 0;
    if (common.value_or(kind) != kind || !is_aligned) {
      return Fail(
          Differs("it shares memory with a tensor whose elements are other numbers; such "
                  "tensors have no mean",
                  tensors[i].fqn, contents.step.step));
    }
    common = kind;
  }
  std::vector<MeanKind> kinds;
  for (const size_t owner : owners) kinds.push_back(decided[owner].value_or(MeanKind::kNone));
  return kinds;
}

/// Plans the merge of at least two steps. Reads their records. Memory: the records of two steps.
///
/// kInvalidArgument, which names the keys and steps: a step does not have the same keys as the last
/// one; a tensor has another dtype or shape; tensors share memory in the last step and not in the
/// same way in another; or tensors with different kinds of numbers share memory.
Result<MergePlan> PlanMerge(std::span<const StepView> views) {
  CAIRN_CHECK(views.size() >= 2);
  MergePlan plan;
  CAIRN_TRY_ASSIGN(plan.contents, ListLeaves(views.back(), {}));
  for (const StepView& view : views.first(views.size() - 1)) {
    CAIRN_TRY_ASSIGN(const Contents other, ListLeaves(view, {}));
    CAIRN_TRY(CheckStep(plan.contents, other));
  }
  CAIRN_TRY_ASSIGN(plan.kinds, DecideKinds(plan.contents));
  return plan;
}

/// Returns the weights divided by their sum; `count` equal weights if `weights` is empty.
/// kInvalidArgument: there are not `count` weights, or their sum is not positive and finite.
Result<std::vector<double>> NormalizeWeights(std::span<const double> weights, size_t count) {
  if (weights.empty()) return std::vector<double>(count, 1.0 / static_cast<double>(count));
  if (weights.size() != count) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} weights for {} steps; give one weight for each step",
                            weights.size(), count));
  }
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (!std::isfinite(sum) || sum <= 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the sum of the weights is {}; it must be positive and finite", sum));
  }
  std::vector<double> normalized;
  for (const double weight : weights) normalized.push_back(weight / sum);
  return normalized;
}

// Not the store's blocks: the reads of the next window need those while the writer holds its own.
constexpr uint64_t kWriteBlockBytes = 1 << 20;
constexpr uint32_t kWriteBlocks = 4;
constexpr uint64_t kLargeTensorBytes = 1 << 20;  // aligned for direct reads

/// A chunk that is computed while it is appended. Borrows the window, which it fills with one part
/// of the chunk at a time.
class LongChunk final : public kv::Payload {
 public:
  LongChunk(MeanWindow& window, const TensorInfo& tensor, MeanKind kind, ChunkGrid grid,
            uint64_t length_bytes)
      : window_(window),
        tensor_(tensor),
        kind_(kind),
        grid_(std::move(grid)),
        length_bytes_(length_bytes) {}

  uint64_t length_bytes() const override { return length_bytes_; }
  Result<void> CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const override {
    while (!target.empty()) {
      CAIRN_TRY(Compute(begin_bytes));
      const auto part = window_.bytes(0).subspan(begin_bytes - grid_.offset_bytes(*part_));
      const size_t count = std::min(part.size(), target.size());
      std::memcpy(target.data(), part.data(), count);
      target = target.subspan(count);
      begin_bytes += count;
    }
    return {};
  }

 private:
  /// Makes the part that contains the byte the current one. Usually it is the next.
  Result<void> Compute(uint64_t byte) const {
    const auto contains = [&](uint64_t part) {
      return grid_.offset_bytes(part) <= byte &&
             byte < grid_.offset_bytes(part) + grid_.length_bytes(part);
    };
    if (part_ && contains(*part_)) return {};
    uint64_t part = part_ && grid_.offset_bytes(*part_) < byte ? *part_ + 1 : 0;
    while (!contains(part)) ++part;
    part_.reset();
    window_.Clear();
    window_.Add(tensor_.fqn, tensor_.dtype, kind_, grid_.chunk(part));
    CAIRN_TRY(window_.Compute());
    part_ = part;
    return {};
  }

  MeanWindow& window_;
  const TensorInfo& tensor_;
  const MeanKind kind_;
  const ChunkGrid grid_;
  const uint64_t length_bytes_;
  mutable std::optional<uint64_t> part_;  // in the window
};

class Merger {
 public:
  Merger(std::span<const StepView> views, const MergePlan& plan, kv::StepWriter& writer,
         MeanWindow& window, ProgressMeter& progress, uint64_t into)
      : views_(views),
        plan_(plan),
        tensors_(plan.contents.tensors),
        writer_(writer),
        window_(window),
        progress_(progress),
        into_(into) {}

  Result<void> AddChunks() {
    // Aliases have no chunks, and ForEachChunkOf accepts them.
    CAIRN_TRY(ForEachChunkOf(views_.back(), tensors_, [&](size_t i, ChunkInfo chunk) {
      return AddChunk(i, std::move(chunk));
    }));
    CAIRN_TRY(Flush());
    return AddTensors(tensors_.size());
  }

  Result<kv::StepSummary> AddOtherRecords() {
    kv::StepSummary summary{.base_step = views_.back().step.step};
    for (const TensorInfo& tensor : tensors_) {
      if (!tensor.alias_of) summary.logical_bytes += tensor.nbytes;
      summary.tensor_count += tensor.hidden ? 0 : 1;
    }
    for (const ValueInfo& value : plan_.contents.values) {
      CAIRN_TRY_ASSIGN(const std::vector<std::byte> record, EncodeValue(value.value));
      CAIRN_TRY(writer_.AddRecord(kv::Column::kValues, kv::FqnKey(value.fqn), record));
      ++summary.value_count;
    }
    CAIRN_TRY(MoveApplicationRecords(*views_.back().snapshot, views_.back().step, {}, writer_));
    CAIRN_TRY_ASSIGN(const auto structure,
                     views_.back().snapshot->GetStructure(views_.back().step));
    if (!structure) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "the step has no structure record",
                        .step = views_.back().step.step});
    }
    CAIRN_TRY(writer_.SetStructure(*structure));
    return summary;
  }

 private:
  struct Pending {
    size_t tensor = 0;
    Box box;
  };

  /// Adds the records of the tensors before `end` that are not added yet: before their chunks, so
  /// that the footer of a segment has both.
  Result<void> AddTensors(size_t end) {
    for (; next_tensor_ < end; ++next_tensor_) {
      const TensorInfo& tensor = tensors_[next_tensor_];
      CAIRN_TRY(
          writer_.AddRecord(kv::Column::kTensors, kv::FqnKey(tensor.fqn), EncodeTensor(tensor)));
    }
    return {};
  }

  Result<void> AddChunk(size_t i, ChunkInfo chunk) {
    CAIRN_TRY(AddTensors(i + 1));
    const TensorInfo& tensor = tensors_[i];
    const MeanKind kind = plan_.kinds[i];
    const std::string key = kv::ChunkKey(tensor.fqn, chunk.box.offsets);
    bool is_same = kind == MeanKind::kNone;
    if (!is_same) {
      CAIRN_TRY_ASSIGN(is_same, AllHave(key, tensor.fqn, chunk));
    }
    if (is_same) {
      CAIRN_TRY(writer_.AddChunk(key, chunk.entry(), /*reused=*/true));
      if (kind == MeanKind::kNone) return {};
      return progress_.Add(views_.size() * chunk.length_bytes());
    }
    CAIRN_TRY(CheckCanCompute(tensor, kind, chunk));
    if (chunk.length_bytes() > MeanWindow::kMaxBytes) {
      CAIRN_TRY(Flush());
      return AppendLong(i, chunk);
    }
    if (!window_.HasRoom(chunk.length_bytes())) CAIRN_TRY(Flush());
    window_.Add(tensor.fqn, tensor.dtype, kind, chunk.box);
    pending_.push_back({.tensor = i, .box = std::move(chunk.box)});
    return {};
  }

  /// Returns whether all steps have a chunk with these bytes.
  Result<bool> AllHave(const std::string& key, const std::string& fqn,
                       const ChunkInfo& chunk) const {
    for (const StepView& view : views_.first(views_.size() - 1)) {
      CAIRN_TRY_ASSIGN(const auto record, view.snapshot->Get(kv::Column::kChunks, view.step, key));
      if (!record) return false;
      auto other = DecodeChunk(key, *record);
      if (!other) return Fail(std::move(other).error().WithKey(fqn).WithStep(view.step.step));
      if (other->info.box.sizes != chunk.box.sizes || other->info.digest != chunk.digest) {
        return false;
      }
    }
    return true;
  }

  static Result<void> CheckCanCompute(const TensorInfo& tensor, MeanKind kind,
                                      const ChunkInfo& chunk) {
    if (kind == MeanKind::kUnsupported) {
      return Fail(Error{
          .code = ErrorCode::kInvalidArgument,
          .message = fmt::format("the steps differ in a tensor of {}, of which no mean is computed",
                                 schema::DTypeName(tensor.dtype)),
          .key = tensor.fqn});
    }
    // Storage without a name is divided into bytes, not into the numbers of the tensors in it.
    if (chunk.length_bytes() % NumberBytes(kind) == 0) return {};
    return Fail(Error{.code = ErrorCode::kUnimplemented,
                      .message = "a chunk of memory that tensors share ends inside a number",
                      .key = tensor.fqn});
  }

  Result<void> AppendLong(size_t i, const ChunkInfo& chunk) {
    const TensorInfo& tensor = tensors_[i];
    CAIRN_TRY_ASSIGN(ChunkGrid grid,
                     ChunkGrid::Make(tensor.dtype, chunk.box, MeanWindow::kMaxBytes));
    const LongChunk payload(window_, tensor, plan_.kinds[i], std::move(grid), chunk.length_bytes());
    auto appended = Append(i, chunk.box, payload);
    window_.Clear();
    return appended;
  }

  Result<void> Append(size_t i, const Box& box, const kv::Payload& payload) {
    const TensorInfo& tensor = tensors_[i];
    const kv::SegmentAlignment first = tensor.nbytes >= kLargeTensorBytes
                                           ? kv::SegmentAlignment::k4096
                                           : kv::SegmentAlignment::k64;
    const bool follows = std::exchange(last_appended_, i) == i;
    CAIRN_TRY_ASSIGN(const auto appended,
                     writer_.Append(payload, follows ? kv::SegmentAlignment::kNone : first));
    return writer_.AddChunk(kv::ChunkKey(tensor.fqn, box.offsets),
                            {.sizes = box.sizes,
                             .extents = appended.extent,
                             .digest = appended.digest,
                             .since_step = into_},
                            /*reused=*/false);
  }

  /// Computes and appends the chunks in the window.
  Result<void> Flush() {
    if (pending_.empty()) return {};
    CAIRN_TRY(window_.Compute());
    for (size_t i = 0; i < pending_.size(); ++i) {
      CAIRN_TRY(Append(pending_[i].tensor, pending_[i].box, kv::CopiedBytes(window_.bytes(i))));
    }
    pending_.clear();
    window_.Clear();
    return {};
  }

  const std::span<const StepView> views_;
  const MergePlan& plan_;
  const std::vector<TensorInfo>& tensors_;
  kv::StepWriter& writer_;
  MeanWindow& window_;
  ProgressMeter& progress_;
  const uint64_t into_;
  size_t next_tensor_ = 0;               // the first whose record is not added yet
  std::vector<Pending> pending_;         // contents of the window, in the same order
  std::optional<size_t> last_appended_;  // tensor of the chunk that was appended last
};

Result<std::vector<StepView>> FindSteps(const kv::Store& store, std::span<const uint64_t> steps) {
  if (steps.size() < 2) {
    return Fail(ErrorCode::kInvalidArgument, "a merge needs at least two steps; name another one");
  }
  CAIRN_TRY_ASSIGN(const std::shared_ptr<const kv::Snapshot> snapshot, store.Latest());
  std::vector<StepView> views;
  for (const uint64_t step : steps) {
    if (std::ranges::count(steps, step) > 1) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "the step is named twice; give it a weight instead",
                        .step = step});
    }
    CAIRN_TRY_ASSIGN(kv::StepInfo info, snapshot->FindStep(step));
    views.push_back(
        {.snapshot = snapshot, .step = std::move(info), .directory = store.directory()});
  }
  return views;
}

/// Bytes of the steps of which the mean is computed.
uint64_t BytesToMerge(const MergePlan& plan, size_t step_count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan.kinds.size(); ++i) {
    const TensorInfo& tensor = plan.contents.tensors[i];
    if (!tensor.alias_of && plan.kinds[i] != MeanKind::kNone) bytes += tensor.nbytes;
  }
  return bytes * step_count;
}

}  // namespace

Result<MergeReport> RunMerge(kv::Store& store, std::span<const uint64_t> steps, uint64_t into,
                             const MergeOptions& options, kv::WorkerPool& pool) {
  const auto begin = std::chrono::steady_clock::now();
  // Begin first: it refuses a store that is open for reading, and a step that exists.
  kv::BeginOptions begin_options{.overwrite = options.overwrite, .is_derived = true};
  if (!steps.empty()) begin_options.parent = steps.back();
  CAIRN_TRY_ASSIGN(const auto writer, store.Begin(into, begin_options));
  CAIRN_TRY_ASSIGN(const std::vector<StepView> views, FindSteps(store, steps));
  CAIRN_TRY_ASSIGN(const auto weights, NormalizeWeights(options.weights, steps.size()));
  CAIRN_TRY_ASSIGN(const MergePlan plan, PlanMerge(views));
  CAIRN_TRY(writer->UseBlocks(std::make_shared<kv::BlockPool>(kWriteBlockBytes, kWriteBlocks)));
  // Also the steps that are only read: a result of steps that were replaced would be wrong.
  for (const StepView& view : views) writer->ReferTo(view.step);
  ProgressMeter progress(options.progress, BytesToMerge(plan, steps.size()));
  MeanWindow window(store, views, weights, pool, progress);
  Merger merger(views, plan, *writer, window, progress, into);
  CAIRN_TRY(merger.AddChunks());
  CAIRN_TRY_ASSIGN(const kv::StepSummary summary, merger.AddOtherRecords());
  MergeReport report{.bytes_read = window.bytes_read()};
  CAIRN_TRY_ASSIGN(report.step, writer->Commit(summary));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace cairn::core::internal
