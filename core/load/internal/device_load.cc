// Requests are cut at the default chunk size, which is a block's, and gathered in windows of
// blocks. Two windows take turns: what one has read crosses the bus while the other is read.

#include "core/load/internal/device_load.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/tensor/chunk_grid.h"
#include "core/device/internal/device_queues.h"
#include "core/device/internal/pinned_blocks.h"

namespace cairn::core::internal {
namespace {

constexpr size_t kWindowBlocks = 32;
constexpr uint64_t kPieceAlignment = 64;

// A part of a request that lands in a block.
struct Piece {
  const LoadRequest* request = nullptr;
  uint64_t begin_bytes = 0;  // in the request's row-major payload
  std::span<std::byte> landing;
};

// Blocks of the pool, given back at the end.
class Window {
 public:
  explicit Window(kv::BlockPool* pool) : pool_(pool) {}
  ~Window() {
    for (std::byte* const block : blocks_) pool_->Give(block);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  bool empty() const { return pieces_.empty(); }
  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<LoadRequest>& requests() const { return requests_; }

  void Clear() {
    pieces_.clear();
    requests_.clear();
    block_ = 0;
    used_bytes_ = 0;
  }

  /// Memory for a piece; false: the window is full. `may_wait`: for a first block, of which the
  /// window before holds none back.
  Result<bool> Add(const LoadRequest& request, const ChunkGrid& grid, uint64_t chunk,
                   bool may_wait) {
    const uint64_t length_bytes = grid.length_bytes(chunk);
    const uint64_t begin = (used_bytes_ + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
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
    const std::span landing(blocks_[block_] + begin, grid.length_bytes(chunk));
    used_bytes_ = begin + landing.size();
    const Box box = grid.chunk(chunk);
    pieces_.push_back(
        {.request = &request, .begin_bytes = grid.offset_bytes(chunk), .landing = landing});
    requests_.push_back({.fqn = request.fqn,
                         .box = box,
                         .target = {.dtype = request.target.dtype,
                                    .shape = box.sizes,
                                    .strides = {},
                                    .data = landing.data()}});
  }

  kv::BlockPool* const pool_;  // the process's
  std::vector<std::byte*> blocks_;
  size_t block_ = 0;         // that is being filled
  uint64_t used_bytes_ = 0;  // of it
  std::vector<Piece> pieces_;
  std::vector<LoadRequest> requests_;
};

class DeviceLoad {
 public:
  DeviceLoad(kv::BlockPool* pool, const Progress& progress, const HostLoad& host_load)
      : progress_(progress), host_load_(host_load), windows_{Window(pool), Window(pool)} {}

  // Before the windows: their blocks go back when nothing crosses the bus any more.
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
      queue->JoinHostRuns(true);  // blocks begin on 2 MiB
      CAIRN_TRY(WaitForStreams(*queue, streams));
      queues_.emplace(device, std::move(queue));
    }
    return {};
  }

  /// Targets in host memory need no blocks.
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
      // The other window gives its blocks back only after its turn, so it must not hold any when
      // this one waits for a first one.
      CAIRN_TRY_ASSIGN(const bool added, windows_[turn_].Add(request, grid, chunk, !sent_before_));
      if (added) {
        ++chunk;
        continue;
      }
      CAIRN_TRY(Send());
    }
    return {};
  }

  Result<void> Finish() {
    CAIRN_TRY(Send());
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

  // Reads the window whose turn it is, starts its copies, and makes the other one ready.
  Result<void> Send() {
    Window& window = windows_[turn_];
    if (window.empty()) {
      // No block could be had: those of the other window are the only ones.
      CAIRN_TRY(AwaitCopies(1 - turn_));
      turn_ = 1 - turn_;
      windows_[turn_].Clear();
      return {};
    }
    CAIRN_TRY(Read(window.requests()));
    for (const Piece& piece : window.pieces()) {
      const TensorTarget& target = piece.request->target;
      CAIRN_TRY(queues_.at(target.device)->CopyIn(piece.landing, target, piece.begin_bytes));
    }
    for (const auto& [device, queue] : queues_) {
      CAIRN_TRY_ASSIGN(const DeviceQueue::Mark mark, queue->Flush());
      marks_[turn_].emplace_back(queue.get(), mark);
    }
    sent_before_ = true;
    turn_ = 1 - turn_;
    CAIRN_TRY(AwaitCopies(turn_));
    windows_[turn_].Clear();
    return {};
  }

  Result<void> AwaitCopies(size_t window) {
    for (const auto& [queue, mark] : marks_[window]) CAIRN_TRY(queue->Await(mark));
    marks_[window].clear();
    return {};
  }

  const Progress& progress_;
  const HostLoad& host_load_;
  std::array<Window, 2> windows_;
  std::array<std::vector<std::pair<DeviceQueue*, DeviceQueue::Mark>>, 2> marks_;
  size_t turn_ = 0;                                   // the window that is being filled
  bool sent_before_ = false;                          // the other one may hold blocks
  std::map<int, std::shared_ptr<DeviceQueue>> queues_;  // shared for their deleter
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
