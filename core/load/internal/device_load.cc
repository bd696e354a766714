// Requests are divided into parts of at most the default chunk size, which is the size of a block,
// and collected in windows of blocks. Two windows alternate: while the bytes of one are copied to
// the devices, the other is read.

#include "core/load/internal/device_load.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/internal/device_queues.h"
#include "core/device/internal/pinned_blocks.h"
#include "core/tensor/chunk_grid.h"

namespace cairn::core::internal {
namespace {

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
  DeviceLoad(kv::BlockPool* pool, const Progress& progress, const HostLoad& host_load)
      : progress_(progress), host_load_(host_load), windows_{Window(pool), Window(pool)} {}

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
  Result<void> LoadHost(std::span<const LoadRequest> requests) {
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
    CAIRN_TRY_ASSIGN(const LoadReport report, host_load_(requests, progress));
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

  const Progress& progress_;
  const HostLoad& host_load_;
  std::array<Window, 2> windows_;
  std::array<std::vector<std::shared_ptr<const DeviceFence>>, 2> copies_;
  size_t filling_ = 0;                                  // the window that is being filled
  bool copied_before_ = false;                          // the other window may hold blocks
  std::map<int, std::shared_ptr<DeviceQueue>> queues_;  // shared_ptr only for the deleter
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace

bool HasDeviceTargets(std::span<const LoadRequest> requests) {
  return std::ranges::any_of(
      requests, [](const LoadRequest& request) { return request.target.device != kHostDevice; });
}

Result<LoadReport> LoadThroughBlocks(std::span<const LoadRequest> requests,
                                     std::span<const DeviceStream> streams,
                                     const Progress& progress, const HostLoad& host_load) {
  CAIRN_TRY_ASSIGN(DeviceBackend* const backend, FindDeviceBackend());
  CAIRN_TRY_ASSIGN(const std::shared_ptr<kv::BlockPool> pool, PinnedBlocks());
  DeviceLoad load(pool.get(), progress, host_load);
  CAIRN_TRY(load.Begin(*backend, requests, streams));
  CAIRN_TRY(load.LoadHost(requests));
  for (const LoadRequest& request : requests) {
    if (request.target.device != kHostDevice) CAIRN_TRY(load.Load(request));
  }
  CAIRN_TRY(load.Finish());
  return LoadReport{.bytes_read = load.bytes_read()};
}

}  // namespace cairn::core::internal
