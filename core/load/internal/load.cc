// Loads to host memory are planned (ReadPlan) by one thread while others read (ChunkReader). Loads
// to device memory are loads to page-locked blocks of host memory, which devices copy.

#include "core/load/internal/load.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "core/load/internal/chunk_reader.h"
#include "core/load/internal/device_load.h"
#include "core/load/internal/read_plan.h"
#include "core/tensor/internal/memory_span.h"
#include "kv/base/catch_exhaustion.h"

namespace cairn::core::internal {
namespace {

// A thread costs more than it saves.
constexpr uint64_t kSmallLoadBytes = 1 << 20;

// Loads to host memory. LoadReport::seconds is not set.
Result<LoadReport> LoadHost(const StepView& view, ReadPlan plan, const Progress& progress) {
  ProgressMeter meter(progress, plan.total_bytes());
  const auto plan_then_read = [&]() -> Result<LoadReport> {
    ChunkReader reader(view, meter, ChunkReader::Limit::kNone);
    reader.Close(plan.AddReads(view, reader));
    CAIRN_TRY(reader.ReadAll());
    return LoadReport{.bytes_read = reader.bytes_read()};
  };
  if (plan.total_bytes() <= kSmallLoadBytes) return plan_then_read();
  ChunkReader reader(view, meter);
  // Planning many small chunks takes as long as reading them, so both run at the same time.
  std::jthread planner;
  try {
    planner = std::jthread([&] {
      reader.Close(
          kv::CatchExhaustion("the plan of a load", [&] { return plan.AddReads(view, reader); }));
    });
  } catch (const std::system_error&) {  // the system has no more threads
    return plan_then_read();
  }
  CAIRN_TRY(reader.ReadAll());
  return LoadReport{.bytes_read = reader.bytes_read()};
}

Result<LoadReport> LoadAnywhere(const StepView& view, std::span<const LoadRequest> requests,
                                const Progress& progress, std::span<const DeviceStream> streams,
                                std::span<const TensorInfo> known) {
  CAIRN_TRY_ASSIGN(ReadPlan plan, ReadPlan::Make(view, requests, known));
  if (!HasDeviceTargets(requests)) return LoadHost(view, std::move(plan), progress);
  const HostLoad load_part = [&](std::span<const LoadRequest> part,
                                 const Progress& part_progress) -> Result<LoadReport> {
    CAIRN_TRY_ASSIGN(ReadPlan part_plan, ReadPlan::Make(view, part, known));
    return LoadHost(view, std::move(part_plan), part_progress);
  };
  return LoadThroughBlocks(requests, streams, progress, load_part);
}

// True if no span ends after the next one begins.
bool AscendApart(std::span<const MemorySpan> spans) {
  uintptr_t end = 0;
  for (const MemorySpan& span : spans) {
    if (span.begin == span.end) continue;
    if (span.begin < end) return false;
    end = span.end;
  }
  return true;
}

// Divides requests so that the contiguous targets in host memory that are loaded at once do not
// overlap, as the targets of tied weights may, which the step has as separate tensors: bytes are
// verified, and deltas applied, where they are. Returns nothing if there are no such targets.
std::vector<std::vector<LoadRequest>> DivideOverlaps(std::span<const LoadRequest> requests) {
  std::vector<MemorySpan> spans(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const TensorTarget& target = requests[i].target;
    if (target.device != kHostDevice) continue;
    if (!CheckStrides(target.shape, target.strides)) continue;
    if (!IsContiguous(target.shape, target.strides)) continue;
    // The plan of the load reports what is wrong.
    const auto span = ContiguousSpan(target.dtype, target.shape, target.data);
    if (span) spans[i] = *span;
  }
  if (AscendApart(spans)) return {};  // as in new memory
  std::vector<size_t> turn_of(requests.size(), 0);
  size_t turns = 1;
  for (const std::span<size_t> group : OverlapGroups(spans)) {
    for (size_t turn = 0; turn < group.size(); ++turn) turn_of[group[turn]] = turn;
    turns = std::max(turns, group.size());
  }
  std::vector<std::vector<LoadRequest>> divided;
  if (turns == 1) return divided;
  divided.resize(turns);
  for (size_t i = 0; i < requests.size(); ++i) divided[turn_of[i]].push_back(requests[i]);
  return divided;
}

// Loads one part of the requests after the other.
Result<LoadReport> LoadInTurns(const StepView& view, std::span<const LoadRequest> requests,
                               const Progress& progress, std::span<const DeviceStream> streams,
                               std::span<const TensorInfo> known) {
  const std::vector<std::vector<LoadRequest>> divided = DivideOverlaps(requests);
  if (divided.empty()) return LoadAnywhere(view, requests, progress, streams, known);
  LoadReport report;
  uint64_t before_bytes = 0;
  for (const std::vector<LoadRequest>& part : divided) {
    uint64_t part_bytes = 0;
    Progress part_progress;
    if (progress) {
      part_progress = [&](uint64_t done, uint64_t total) {
        part_bytes = total;
        return progress(before_bytes + done, before_bytes + total);
      };
    }
    CAIRN_TRY_ASSIGN(const LoadReport loaded,
                     LoadAnywhere(view, part, part_progress, streams, known));
    before_bytes += part_bytes;
    report.bytes_read += loaded.bytes_read;
  }
  return report;
}

// Loads the values, whose bytes the `tensors` with the same indices have. Looks for all of their
// chunks first: a record of a few bytes can state that there is 1 GiB of them.
Result<void> LoadValueGroup(const StepView& view, std::span<ValueInfo* const> values,
                            std::span<const TensorInfo> tensors, const Progress& progress) {
  const auto ignore = [](size_t, ChunkInfo&&) { return Result<void>(); };
  CAIRN_TRY(ForEachChunkOf(view, tensors, ignore));
  std::vector<std::vector<std::byte>> bytes;
  std::vector<LoadRequest> requests;
  for (const TensorInfo& tensor : tensors) {
    bytes.emplace_back(tensor.nbytes);
    requests.push_back(
        {.fqn = tensor.fqn,
         .box = WholeBox(tensor.shape),
         .target = {.dtype = tensor.dtype, .shape = tensor.shape, .data = bytes.back().data()}});
  }
  CAIRN_TRY(RunLoad(view, requests, progress, {}, tensors));
  for (size_t i = 0; i < values.size(); ++i) {
    ValueInfo& info = *values[i];
    auto value = WithBytes(std::get<ChunkedValue>(info.value), std::move(bytes[i]));
    if (!value) return Fail(std::move(value).error().WithKey(info.fqn).WithStep(view.step.step));
    info.value = *std::move(value);
  }
  return {};
}

}  // namespace

Result<void> RunLoadValues(const StepView& view, std::span<ValueInfo> values,
                           const Progress& progress) {
  constexpr uint64_t kGroupBytes = 64 << 20;
  std::vector<ValueInfo*> chunked;
  for (ValueInfo& info : values) {
    if (std::holds_alternative<ChunkedValue>(info.value)) chunked.push_back(&info);
  }
  std::ranges::sort(chunked, {}, &ValueInfo::fqn);
  std::vector<std::string_view> fqns;
  for (const ValueInfo* info : chunked) fqns.push_back(info->fqn);
  CAIRN_TRY_ASSIGN(const std::vector<TensorInfo> tensors, FindTensors(view, fqns));
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < chunked.size(); ++i) {
    CAIRN_TRY(CheckBytes(view, *chunked[i], &tensors[i]));
    total_bytes += tensors[i].nbytes;
  }
  uint64_t done_bytes = 0;
  for (size_t begin = 0; begin < chunked.size();) {
    size_t end = begin;
    uint64_t bytes = 0;
    do {
      bytes += tensors[end++].nbytes;
    } while (end < chunked.size() && bytes + tensors[end].nbytes <= kGroupBytes);
    Progress of_group;
    if (progress) {
      of_group = [&](uint64_t done, uint64_t) { return progress(done_bytes + done, total_bytes); };
    }
    CAIRN_TRY(LoadValueGroup(view, std::span(chunked).subspan(begin, end - begin),
                             std::span(tensors).subspan(begin, end - begin), of_group));
    done_bytes += bytes;
    begin = end;
  }
  return {};
}

Result<LoadReport> RunLoad(const StepView& view, std::span<const LoadRequest> requests,
                           const Progress& progress, std::span<const DeviceStream> streams,
                           std::span<const TensorInfo> known) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(LoadReport report, LoadInTurns(view, requests, progress, streams, known));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace cairn::core::internal
