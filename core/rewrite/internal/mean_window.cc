#include "core/rewrite/internal/mean_window.h"

#include <algorithm>
#include <utility>

#include "core/load/internal/load.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kSliceBytes = 256 << 10;
constexpr uint64_t kAlignBytes = 64;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

std::unique_ptr<std::byte[]> Buffer(uint64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

}  // namespace

MeanWindow::MeanWindow(const kv::Store& store, std::span<const StepView> views,
                       std::span<const double> weights, kv::WorkerPool& pool,
                       ProgressMeter& progress)
    : store_(store),
      views_(views),
      weights_(weights),
      pool_(pool),
      progress_(progress),
      first_(Buffer(kMaxBytes)),
      next_(Buffer(kMaxBytes)),
      different_(Buffer(kMaxBytes)),
      sums_(Buffer(2 * kMaxBytes)) {}

bool MeanWindow::HasRoom(uint64_t bytes) const {
  return used_bytes_ + bytes <= kMaxBytes && parts_.size() < kMaxBoxes;
}

void MeanWindow::Add(const std::string& fqn, DType dtype, MeanKind kind, Box box) {
  const auto length = TensorBytes(dtype, box.sizes);
  CAIRN_CHECK(length && HasRoom(*length));
  for (uint64_t begin = 0; begin < *length; begin += kSliceBytes) {
    slices_.push_back({.kind = kind,
                       .begin_bytes = used_bytes_ + begin,
                       .length_bytes = std::min(kSliceBytes, *length - begin)});
  }
  parts_.push_back({.fqn = fqn,
                    .dtype = dtype,
                    .kind = kind,
                    .box = std::move(box),
                    .begin_bytes = used_bytes_,
                    .length_bytes = *length});
  used_bytes_ = std::min(RoundUp(used_bytes_ + *length), kMaxBytes);
}

Result<void> MeanWindow::Compute() {
  for (size_t step = 0; step < views_.size(); ++step) {
    CAIRN_TRY(Read(views_[step], step == 0 ? first_.get() : next_.get()));
    AddStep(step);
  }
  return {};
}

Result<void> MeanWindow::Read(const StepView& view, std::byte* target) {
  std::vector<LoadRequest> requests;
  uint64_t bytes = 0;
  for (const Part& part : parts_) {
    requests.push_back(
        {.fqn = part.fqn,
         .box = part.box,
         .target = {
             .dtype = part.dtype, .shape = part.box.sizes, .data = target + part.begin_bytes}});
    bytes += part.length_bytes;
  }
  CAIRN_TRY_ASSIGN(const LoadReport report,
                   WithStep(store_, view.step, [&](const StepView& current) {
                     return RunLoad(current, requests, {});
                   }));
  bytes_read_ += report.bytes_read;
  return progress_.Add(bytes);
}

void MeanWindow::AddStep(size_t step) {
  const double weight = weights_[step];
  const bool is_last = step + 1 == views_.size();
  pool_.Run(slices_.size(), [&](size_t i, size_t) {
    const MeanRun run = RunOf(slices_[i]);
    if (step == 0) return BeginMean(run, weight);
    AddToMean(run, weight, {next_.get() + slices_[i].begin_bytes, slices_[i].length_bytes});
    if (is_last) FinishMean(run);
  });
}

MeanRun MeanWindow::RunOf(const Slice& slice) const {
  return {.kind = slice.kind,
          .first = {first_.get() + slice.begin_bytes, slice.length_bytes},
          .different = {different_.get() + slice.begin_bytes, slice.length_bytes},
          .sum = {sums_.get() + 2 * slice.begin_bytes, SumBytes(slice.kind, slice.length_bytes)}};
}

std::span<const std::byte> MeanWindow::bytes(size_t i) const {
  return {first_.get() + parts_[i].begin_bytes, parts_[i].length_bytes};
}

void MeanWindow::Clear() {
  parts_.clear();
  slices_.clear();
  used_bytes_ = 0;
}

}  // namespace cairn::core::internal
