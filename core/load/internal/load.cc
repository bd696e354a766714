// Loads to host memory are planned (ReadPlan) by one thread while others read (ChunkReader).
//
// Loads to device memory are loads to page-locked blocks of host memory, which devices copy.
// Requests are divided into parts of at most the default chunk size, which is the size of a block,
// and collected in windows of blocks. Two windows alternate: while the bytes of one are copied to
// the devices, the other is read.

#include "core/load/internal/load.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/internal/device_queues.h"
#include "core/device/internal/pinned_blocks.h"
#include "core/load/internal/chunk_reader.h"
#include "core/load/internal/read_plan.h"
#include "core/tensor/chunk_grid.h"
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

constexpr size_t kWindowBlocks = 32;
constexpr uint64_t kPartAlignment = 64;

// A part of a request, and the bytes of a block to which it is read.
struct RequestPart {
  const LoadRequest* request = nullptr;
  uint64_t begin_bytes = 0;  // in the request's row-major payload
  std::span<std::byte> block_bytes;
};

// Parts that are read together. Ownership: holds blocks of the pool until it is destroyed.
class Window {
 public:
  explicit Window(kv::BlockPool* pool) : pool_(pool) {}
  ~Window() {
    for (std::byte* const block : blocks_) pool_->Give(block);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  bool empty() const { return parts_.empty(); }
  const std::vector<RequestPart>& parts() const { return parts_; }
  const std::vector<LoadRequest>& requests() const { return requests_; }

  void Clear() {
    parts_.clear();
    requests_.clear();
    block_ = 0;
    used_bytes_ = 0;
  }

  /// Adds a chunk of a request as a part. Returns false if the window is full. `may_wait`: waits
  /// for the first block, which requires that the other window holds none.
  Result<bool> Add(const LoadRequest& request, const ChunkGrid& grid, uint64_t chunk,
                   bool may_wait) {
    const uint64_t length_bytes = grid.length_bytes(chunk);
    const uint64_t begin = (used_bytes_ + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    if (block_ < blocks_.size() && begin + length_bytes <= pool_->block_bytes()) {
      Put(request, grid, chunk, begin);
      return true;
    }
    if (block_ < blocks_.size()) ++block_;
    if (block_ == blocks_.size()) {
      if (blocks_.size() == kWindowBlocks) return false;
      std::byte* block = pool_->TryTake();
      if (block == nullptr) {
        if (!blocks_.empty() || !may_wait) return false;
        CAIRN_TRY_ASSIGN(block, pool_->Take());
      }
      blocks_.push_back(block);
    }
    Put(request, grid, chunk, 0);
    return true;
  }

 private:
  void Put(const LoadRequest& request, const ChunkGrid& grid, uint64_t chunk, uint64_t begin) {
    const std::span block_bytes(blocks_[block_] + begin, grid.length_bytes(chunk));
    used_bytes_ = begin + block_bytes.size();
    const Box box = grid.chunk(chunk);
    parts_.push_back(
        {.request = &request, .begin_bytes = grid.offset_bytes(chunk), .block_bytes = block_bytes});
    requests_.push_back({.fqn = request.fqn,
                         .box = box,
                         .target = {.dtype = request.target.dtype,
                                    .shape = box.sizes,
                                    .strides = {},
                                    .data = block_bytes.data()}});
  }

  kv::BlockPool* const pool_;  // outlives the window
  std::vector<std::byte*> blocks_;
  size_t block_ = 0;         // index of the block that is being filled
  uint64_t used_bytes_ = 0;  // used bytes of that block
  std::vector<RequestPart> parts_;
  std::vector<LoadRequest> requests_;
};

class DeviceLoad {
 public:
  DeviceLoad(const StepView& view, std::span<const TensorInfo> known, kv::BlockPool* pool,
             const Progress& progress)
      : view_(view), known_(known), progress_(progress), windows_{Window(pool), Window(pool)} {}

  // Waits for the copies before the windows return their blocks to the pool.
  ~DeviceLoad() { queues_.clear(); }

  Result<void> Begin(DeviceBackend& backend, std::span<const LoadRequest> requests,
                     std::span<const DeviceStream> streams) {
    for (const LoadRequest& request : requests) {
      CAIRN_TRY_ASSIGN(const uint64_t bytes,
                       TensorBytes(request.target.dtype, request.target.shape));
      total_bytes_ += bytes;
      const int device = request.target.device;
      if (device == kHostDevice || queues_.contains(device)) continue;
      CAIRN_TRY_ASSIGN(std::shared_ptr<DeviceQueue> queue, backend.OpenQueue(device));
      queue->JoinHostRanges(true);  // blocks begin on 2 MiB
      CAIRN_TRY(WaitForStreams(*queue, streams));
      queues_.emplace(device, std::move(queue));
    }
    return {};
  }

  /// Loads the targets in host memory, which need no blocks.
  Result<void> LoadHostTargets(std::span<const LoadRequest> requests) {
    std::vector<LoadRequest> on_host;
    std::ranges::copy_if(requests, std::back_inserter(on_host), [](const LoadRequest& request) {
      return request.target.device == kHostDevice;
    });
    return on_host.empty() ? Result<void>() : Read(on_host);
  }

  Result<void> Load(const LoadRequest& request) {
    CAIRN_TRY_ASSIGN(const ChunkGrid grid,
                     ChunkGrid::Make(request.target.dtype, request.box, kPinnedBlockBytes));
    for (uint64_t chunk = 0; chunk < grid.chunk_count();) {
      // The other window keeps its blocks, so this one must not wait for its first block while the
      // other has any.
      CAIRN_TRY_ASSIGN(const bool added,
                       windows_[filling_].Add(request, grid, chunk, !copied_before_));
      if (added) {
        ++chunk;
        continue;
      }
      CAIRN_TRY(ReadAndCopy());
    }
    return {};
  }

  Result<void> Finish() {
    CAIRN_TRY(ReadAndCopy());
    CAIRN_TRY(AwaitCopies(0));
    return AwaitCopies(1);
  }

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  Result<void> Read(std::span<const LoadRequest> requests) {
    uint64_t bytes = 0;
    for (const LoadRequest& request : requests) {
      bytes += *TensorBytes(request.target.dtype, request.target.shape);
    }
    Progress progress;
    if (progress_) {
      progress = [this](uint64_t done, uint64_t) {
        return progress_(done_bytes_ + done, total_bytes_);
      };
    }
    CAIRN_TRY_ASSIGN(ReadPlan plan, ReadPlan::Make(view_, requests, known_));
    CAIRN_TRY_ASSIGN(const LoadReport report, LoadHost(view_, std::move(plan), progress));
    done_bytes_ += bytes;
    bytes_read_ += report.bytes_read;
    return {};
  }

  // Reads the window that was filled, starts its copies, and makes the other window ready.
  Result<void> ReadAndCopy() {
    Window& window = windows_[filling_];
    if (window.empty()) {
      // No block was available: the other window has them all.
      CAIRN_TRY(AwaitCopies(1 - filling_));
      filling_ = 1 - filling_;
      windows_[filling_].Clear();
      return {};
    }
    CAIRN_TRY(Read(window.requests()));
    for (const RequestPart& part : window.parts()) {
      const TensorTarget& target = part.request->target;
      CAIRN_TRY(queues_.at(target.device)->CopyIn(part.block_bytes, target, part.begin_bytes));
    }
    for (const auto& [device, queue] : queues_) {
      CAIRN_TRY_ASSIGN(copies_[filling_].emplace_back(), queue->Flush());
    }
    copied_before_ = true;
    filling_ = 1 - filling_;
    CAIRN_TRY(AwaitCopies(filling_));
    windows_[filling_].Clear();
    return {};
  }

  Result<void> AwaitCopies(size_t window) {
    for (const auto& fence : copies_[window]) CAIRN_TRY(fence->Await());
    copies_[window].clear();
    return {};
  }

  const StepView& view_;
  const std::span<const TensorInfo> known_;
  const Progress& progress_;
  std::array<Window, 2> windows_;
  std::array<std::vector<std::shared_ptr<const DeviceFence>>, 2> copies_;
  size_t filling_ = 0;                                  // the window that is being filled
  bool copied_before_ = false;                          // the other window may hold blocks
  std::map<int, std::shared_ptr<DeviceQueue>> queues_;  // shared_ptr only for the deleter
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

// Fills targets in device and in host memory. Requires that all of `requests` have been checked.
// Copies to a device are ordered after the work in the caller's `streams` (for devices that are
// not named, the default stream). The call returns when the copies are done, so that any stream
// may use the targets. Page-locked memory: at most two windows of 128 MiB from the process's pool;
// waits until at least one block is available. kUnavailable: a device has failed.
// kResourceExhausted: there is no page-locked memory. Other errors: see LoadHost.
Result<LoadReport> LoadThroughBlocks(const StepView& view, std::span<const LoadRequest> requests,
                                     const Progress& progress,
                                     std::span<const DeviceStream> streams,
                                     std::span<const TensorInfo> known) {
  CAIRN_TRY_ASSIGN(DeviceBackend* const backend, FindDeviceBackend());
  CAIRN_TRY_ASSIGN(const std::shared_ptr<kv::BlockPool> pool, PinnedBlocks());
  DeviceLoad load(view, known, pool.get(), progress);
  CAIRN_TRY(load.Begin(*backend, requests, streams));
  CAIRN_TRY(load.LoadHostTargets(requests));
  for (const LoadRequest& request : requests) {
    if (request.target.device != kHostDevice) CAIRN_TRY(load.Load(request));
  }
  CAIRN_TRY(load.Finish());
  return LoadReport{.bytes_read = load.bytes_read()};
}

Result<LoadReport> LoadAnywhere(const StepView& view, std::span<const LoadRequest> requests,
                                const Progress& progress, std::span<const DeviceStream> streams,
                                std::span<const TensorInfo> known) {
  CAIRN_TRY_ASSIGN(ReadPlan plan, ReadPlan::Make(view, requests, known));
  const auto is_on_host = [](const LoadRequest& r) { return r.target.device == kHostDevice; };
  if (std::ranges::all_of(requests, is_on_host)) return LoadHost(view, std::move(plan), progress);
  return LoadThroughBlocks(view, requests, progress, streams, known);
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
