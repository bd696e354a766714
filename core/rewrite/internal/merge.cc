// A merge, step by step:
//
// 1. The records of all steps are compared (merge_plan.h).
// 2. The chunks of the last step are visited in key order. A chunk that is not computed, or that
//    all steps have with the same digest, becomes a reference. Others are collected in windows of
//    bounded size (mean_window.h), for which the same boxes are read of one step after the other. A
//    chunk longer than a window is computed part by part while it is appended.
// 3. The records of tensors, values and structure come from the last step. Until the commit,
//    nothing of the new step is visible.

#include "core/rewrite/internal/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/rewrite/internal/mean_window.h"
#include "core/rewrite/internal/merge_plan.h"
#include "core/state_dict/value.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/chunk_grid.h"
#include "kv/base/key.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"
#include "kv/step_writer.h"

namespace cairn::core::internal {
namespace {

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
  CAIRN_TRY_ASSIGN(const auto writer, store.Begin(into, {.overwrite = options.overwrite}));
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
