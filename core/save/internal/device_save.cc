// Digests, copies and snapshots of a plan's pieces in device memory, by one queue a device.

#include "core/save/internal/device_save.h"

#include <algorithm>

#include "core/device/internal/device_queues.h"
#include "core/device/internal/pinned_blocks.h"
#include "core/save/internal/base_cursor.h"
#include "core/save/internal/saved_chunks.h"
#include "kv/digest.h"
#include "kv/div.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kSnapshotAlignment = 512;  // as device allocators give; copies are fast then
// A snapshot leaves the training so much device memory for what it may need next.
constexpr uint64_t kSpareBytes = 512 << 20;

bool HasChange(const PlannedShard& piece) {
  return std::ranges::any_of(piece.unchanged, [](const auto& digest) { return !digest; });
}

// A segment that devices write to. Ownership: borrows the transfers, which end after it.
class TransferFile final : public kv::PayloadFile {
 public:
  TransferFile(DeviceTransfers& transfers, int fd) : transfers_(transfers), fd_(fd) {}
  ~TransferFile() override { transfers_.Close(fd_); }
  TransferFile(const TransferFile&) = delete;
  TransferFile& operator=(const TransferFile&) = delete;

  Result<void> Await() override { return transfers_.Await(fd_); }

 private:
  DeviceTransfers& transfers_;
  const int fd_;
};

}  // namespace

void StagedPoint::Set(std::vector<std::pair<int, std::shared_ptr<const DeviceFence>>> fences) {
  {
    const std::lock_guard lock(mutex_);
    if (set_) return;
    fences_ = std::move(fences);
    set_ = true;
  }
  changed_.notify_all();
}

bool StagedPoint::is_set() const {
  const std::lock_guard lock(mutex_);
  return set_;
}

Result<void> StagedPoint::Await() const {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return set_; });
  }
  for (const auto& [device, fence] : fences_) CAIRN_TRY(fence->Await());
  return {};
}

Result<void> StagedPoint::MakeStreamWait(const DeviceStream& stream) const {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return set_; });
  }
  for (const auto& [device, fence] : fences_) {
    if (device == stream.device) CAIRN_TRY(fence->MakeStreamWait(stream.stream));
  }
  return {};
}

bool DeviceSave::IsNeeded(const SavePlan& plan) {
  return std::ranges::any_of(plan.pieces, &PlannedShard::on_device);
}

Result<std::unique_ptr<DeviceSave>> DeviceSave::Begin(const SavePlan& plan,
                                                      std::span<const DeviceStream> streams) {
  auto save = std::unique_ptr<DeviceSave>(new DeviceSave);
  CAIRN_TRY_ASSIGN(save->backend_, FindDeviceBackend());
  CAIRN_TRY_ASSIGN(save->blocks_, PinnedBlocks());
  CAIRN_TRY(save->FollowFor(plan, streams));
  return save;
}

Result<void> DeviceSave::GoOn(const SavePlan& plan, std::span<const DeviceStream> streams) {
  CAIRN_CHECK(staged_point_->is_set());
  staged_point_ = std::make_shared<StagedPoint>();
  digested_ = false;
  sources_are_ready_ = false;
  compared_.reset();
  page_digests_.clear();
  return FollowFor(plan, streams);
}

Result<void> DeviceSave::FollowFor(const SavePlan& plan, std::span<const DeviceStream> streams) {
  std::set<int> devices;
  for (const PlannedShard& piece : plan.pieces) {
    if (!piece.on_device()) continue;
    devices.insert(piece.source.device);
    payload_bytes_ += piece.end_bytes() - piece.begin_bytes();
  }
  streams_.clear();
  for (const int device : devices) {
    if (!queues_.contains(device)) {
      CAIRN_TRY_ASSIGN(std::shared_ptr<DeviceQueue> queue, backend_->OpenQueue(device));
      queue->JoinHostRuns(true);  // blocks begin on 2 MiB
      queues_.emplace(device, std::move(queue));
    }
    CAIRN_TRY_ASSIGN(const std::vector<DeviceStream> followed,
                     WaitForStreams(*queues_.at(device), streams));
    streams_.insert(streams_.end(), followed.begin(), followed.end());
  }
  return {};
}

DeviceSave::~DeviceSave() {
  transfers_.reset();
  queues_.clear();  // waits: until then the tensors may still be read
  staged_point_->Set({});
}

Result<void> DeviceSave::Digest(SavePlan& plan, const SavedChunks* base) {
  for (const auto& [device, queue] : queues_) CAIRN_TRY(DigestOn(device, plan, base));
  digested_ = true;
  if (base != nullptr) compared_ = base->step;
  return {};
}

Result<void> DeviceSave::DigestOn(int device, SavePlan& plan, const SavedChunks* base) {
  // The digests that are compared with are those of the same device.
  const DevicePageDigests* base_page_digests = nullptr;
  if (base != nullptr) {
    const auto found = base->page_digests.find(device);
    if (found != base->page_digests.end()) base_page_digests = found->second.get();
  }
  BaseCursor cursor(base);
  std::vector<DigestJob> jobs;
  std::vector<const SavedChunks::Piece*> bases;  // by piece on the device
  uint64_t page = 0;
  for (PlannedShard& piece : plan.pieces) {
    const SavedChunks::Piece* found = cursor.Find(plan.tensors[piece.tensor], piece);
    if (piece.source.device != device) continue;
    if (base_page_digests == nullptr || (found != nullptr && found->device != device)) found = nullptr;
    bases.push_back(found);
    piece.first_page_digest = page;
    for (uint64_t chunk = piece.first_chunk; chunk < piece.end_chunk; ++chunk) {
      const uint64_t length_bytes = piece.grid.length_bytes(chunk);
      DigestJob job{.source = piece.source,
                    .begin_bytes = piece.grid.offset_bytes(chunk) - piece.skipped_bytes,
                    .length_bytes = length_bytes};
      if (found != nullptr) job.base_page = found->first_page_digest + (page - piece.first_page_digest);
      jobs.push_back(std::move(job));
      page += kv::PageCount(length_bytes);
    }
  }
  if (jobs.empty()) return {};  // a device of an earlier plan
  DeviceQueue& queue = *queues_.at(device);
  CAIRN_TRY_ASSIGN(const DeviceQueue::Digests digests, queue.Digest(jobs, base_page_digests));

  // Of changed chunks the digests are wanted here.
  std::vector<DeviceQueue::PageRange> ranges;
  std::vector<PlannedShard::ChunkPages*> wanted;
  auto found = bases.begin();
  for (PlannedShard& piece : plan.pieces) {
    if (piece.source.device != device) continue;
    const SavedChunks::Piece* const piece_base = *found++;
    piece.unchanged.resize(piece.chunk_count());
    piece.pages.resize(piece.chunk_count());
    uint64_t first = piece.first_page_digest;
    for (uint64_t chunk = 0; chunk < piece.chunk_count(); ++chunk) {
      const uint64_t count = kv::PageCount(piece.grid.length_bytes(piece.first_chunk + chunk));
      PlannedShard::ChunkPages& pages = piece.pages[chunk];
      if (piece_base != nullptr) {
        for (uint64_t i = 0; i < count; ++i) pages.changed.push_back(digests.IsChanged(first + i));
      }
      if (piece_base != nullptr && std::ranges::find(pages.changed, true) == pages.changed.end()) {
        piece.unchanged[chunk] = piece_base->chunks[chunk].digest;
        pages.changed.clear();
      } else {
        ranges.push_back({.first = first, .count = count});
        wanted.push_back(&pages);
      }
      first += count;
    }
  }
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> page_digests, queue.FetchPageDigests(*digests.page_digests, ranges));
  auto at = page_digests.begin();
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto end = at + static_cast<ptrdiff_t>(ranges[i].count);
    wanted[i]->page_digests.assign(at, end);
    at = end;
  }
  page_digests_[device] = digests.page_digests;
  return {};
}

Result<bool> DeviceSave::TakeSnapshot(SavePlan& plan) {
  std::map<int, uint64_t> bytes;
  for (const PlannedShard& piece : plan.pieces) {
    if (!piece.on_device() || !HasChange(piece)) continue;
    bytes[piece.source.device] +=
        RoundUp(piece.end_bytes() - piece.begin_bytes(), kSnapshotAlignment);
  }
  for (const auto& [device, length_bytes] : bytes) {
    CAIRN_TRY_ASSIGN(const uint64_t free_bytes, backend_->FreeBytes(device));
    if (free_bytes < length_bytes + kSpareBytes) {
      snapshots_.clear();
      return false;
    }
    auto memory = backend_->Allocate(device, length_bytes);
    if (!memory && memory.error().code == ErrorCode::kResourceExhausted) {
      snapshots_.clear();
      return false;
    }
    CAIRN_TRY(memory);
    snapshots_[device] = std::move(*memory);
  }
  std::map<int, uint64_t> used;
  for (PlannedShard& piece : plan.pieces) {
    if (!piece.on_device() || !HasChange(piece)) continue;
    const int device = piece.source.device;
    std::byte* const target = snapshots_.at(device)->data() + used[device];
    const uint64_t length_bytes = piece.end_bytes() - piece.begin_bytes();
    CAIRN_TRY(queues_.at(device)->Pack(piece.source, piece.begin_bytes() - piece.skipped_bytes,
                                      length_bytes, target));
    used[device] += RoundUp(length_bytes, kSnapshotAlignment);
    piece.source.data = target;
    piece.source.strides.clear();
    piece.skipped_bytes = piece.begin_bytes();
  }
  std::vector<std::pair<int, std::shared_ptr<const DeviceFence>>> fences;
  for (const auto& [device, queue] : queues_) {
    CAIRN_TRY_ASSIGN(auto fence, queue->Fence());
    fences.emplace_back(device, std::move(fence));
  }
  staged_point_->Set(std::move(fences));
  for (const DeviceStream& stream : streams_) CAIRN_TRY(staged_point_->MakeStreamWait(stream));
  return true;
}

Result<void> DeviceSave::Start(const TensorView& source, uint64_t begin_bytes,
                               std::span<std::byte> target) {
  last_queue_ = queues_.at(source.device).get();
  used_queues_.insert(last_queue_);
  brought_bytes_ += target.size();
  return last_queue_->CopyOut(source, begin_bytes, target);
}

Result<bool> DeviceSave::StartWrite(const TensorView& source, uint64_t begin_bytes,
                                    uint64_t length_bytes, int fd, uint64_t offset_bytes) {
  if (!IsContiguous(source.shape, source.strides)) return false;
  if (!sources_are_ready_) {
    // Follows the caller's streams and, with a snapshot, is behind its copies.
    for (const auto& [device, queue] : queues_) {
      CAIRN_TRY_ASSIGN(const DeviceQueue::Mark mark, queue->Flush());
      CAIRN_TRY(queue->Await(mark));
    }
    sources_are_ready_ = true;
  }
  CAIRN_TRY(transfers_->Write(fd, source.device, {source.data + begin_bytes, length_bytes},
                              offset_bytes));
  direct_bytes_ += length_bytes;
  return true;
}

Result<std::unique_ptr<kv::PayloadFile>> DeviceSave::OpenFile(int fd, const std::string& path) {
  if (!transfers_) return nullptr;
  CAIRN_TRY_ASSIGN(const bool opened,
                   transfers_->Open(fd, path, DeviceTransfers::FileUse::kWrite));
  if (!opened) return nullptr;
  return std::make_unique<TransferFile>(*transfers_, fd);
}

Result<void> DeviceSave::Zero(std::span<std::byte> target) {
  CAIRN_CHECK(last_queue_ != nullptr);
  used_queues_.insert(last_queue_);
  return last_queue_->ZeroOut(target);
}

Result<uint64_t> DeviceSave::Flush() {
  std::vector<std::pair<DeviceQueue*, DeviceQueue::Mark>> marks;
  for (DeviceQueue* const queue : used_queues_) {
    CAIRN_TRY_ASSIGN(const DeviceQueue::Mark mark, queue->Flush());
    marks.emplace_back(queue, mark);
  }
  used_queues_.clear();
  const std::lock_guard lock(marks_mutex_);
  marks_.emplace(next_mark_, std::move(marks));
  return next_mark_++;
}

Result<bool> DeviceSave::HasReached(uint64_t mark) {
  const std::lock_guard lock(marks_mutex_);
  const auto found = marks_.find(mark);
  if (found == marks_.end()) return true;
  for (const auto& [queue, queue_mark] : found->second) {
    CAIRN_TRY_ASSIGN(const bool passed, queue->Passed(queue_mark));
    if (!passed) return false;
  }
  marks_.erase(found);
  return true;
}

Result<void> DeviceSave::Await(uint64_t mark) {
  std::vector<std::pair<DeviceQueue*, DeviceQueue::Mark>> marks;
  {
    const std::lock_guard lock(marks_mutex_);
    const auto found = marks_.find(mark);
    if (found == marks_.end()) return {};
    marks = found->second;
  }
  for (const auto& [queue, queue_mark] : marks) CAIRN_TRY(queue->Await(queue_mark));
  const std::lock_guard lock(marks_mutex_);
  marks_.erase(mark);
  return {};
}

Result<void> DeviceSave::Staged() {
  if (staged_point_->is_set()) return {};  // by the snapshot
  std::vector<std::pair<int, std::shared_ptr<const DeviceFence>>> fences;
  for (const auto& [device, queue] : queues_) {
    CAIRN_TRY_ASSIGN(auto fence, queue->Fence());
    fences.emplace_back(device, std::move(fence));
  }
  staged_point_->Set(std::move(fences));
  return {};
}

void DeviceSave::Cancel() {
  for (const auto& [device, queue] : queues_) queue->Reset();
}

DeviceSave::Reservation DeviceSave::reservation() const {
  const uint64_t count = payload_bytes_ / blocks_->block_bytes() + 2;
  return {.blocks = blocks_,
          .count = static_cast<uint32_t>(std::min<uint64_t>(count, blocks_->block_count()))};
}

}  // namespace cairn::core::internal
