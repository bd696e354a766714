#include "core/save/internal/device_save.h"

#include <algorithm>

#include "core/device/internal/device_queues.h"
#include "core/device/internal/pinned_blocks.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kSnapshotAlignment = 512;  // as of device allocators; makes copies fast
// A snapshot leaves at least this much device memory free for the training.
constexpr uint64_t kSpareBytes = 512 << 20;

// True if bytes of the tensor itself are to be written.
bool NeedsSnapshot(const SavePlan& plan, size_t index) {
  const PlannedShard& shard = plan.shards()[index];
  if (!shard.on_device() || plan.sources[index].is_stable) return false;
  return std::ranges::any_of(
      std::span(plan.unchanged).subspan(shard.first_chunk, shard.end_chunk - shard.first_chunk),
      [](const auto& digest) { return !digest; });
}

}  // namespace

Result<void> StagedPoint::Await() const {
  for (const auto& [device, fence] : fences_.get()) CAIRN_TRY(fence->Await());
  return {};
}

Result<void> StagedPoint::MakeStreamWait(const DeviceStream& stream) const {
  for (const auto& [device, fence] : fences_.get()) {
    if (device == stream.device) CAIRN_TRY(fence->MakeStreamWait(stream.stream));
  }
  return {};
}

bool DeviceSave::IsNeeded(const SavePlan& plan) {
  return std::ranges::any_of(plan.shards(), &PlannedShard::on_device);
}

Result<std::unique_ptr<DeviceSave>> DeviceSave::Begin(const SavePlan& plan,
                                                      std::span<const DeviceStream> streams) {
  CAIRN_CHECK(IsNeeded(plan));
  auto save = std::unique_ptr<DeviceSave>(new DeviceSave);
  CAIRN_TRY_ASSIGN(save->backend_, FindDeviceBackend());
  CAIRN_TRY_ASSIGN(save->blocks_, PinnedBlocks());
  CAIRN_TRY(save->OpenQueues(plan, streams));
  return save;
}

Result<void> DeviceSave::BeginNextPlan(const SavePlan& plan,
                                       std::span<const DeviceStream> streams) {
  CAIRN_CHECK(staged_point_->is_set());
  staged_point_ = std::make_shared<StagedPoint>();
  digested_ = false;
  compared_.reset();
  page_digests_.clear();
  return OpenQueues(plan, streams);
}

Result<void> DeviceSave::OpenQueues(const SavePlan& plan, std::span<const DeviceStream> streams) {
  std::set<int> devices;
  for (const PlannedShard& shard : plan.shards()) {
    if (!shard.on_device()) continue;
    devices.insert(shard.source->device);
    payload_bytes_ += plan.layout->LengthOf(shard);
  }
  streams_.clear();
  for (const int device : devices) {
    if (!queues_.contains(device)) {
      CAIRN_TRY_ASSIGN(std::shared_ptr<DeviceQueue> queue, backend_->OpenQueue(device));
      queue->JoinHostRanges(true);  // blocks begin on 2 MiB
      queues_.emplace(device, std::move(queue));
    }
    CAIRN_TRY_ASSIGN(const std::vector<DeviceStream> followed,
                     WaitForStreams(*queues_.at(device), streams));
    streams_.insert(streams_.end(), followed.begin(), followed.end());
  }
  return {};
}

DeviceSave::~DeviceSave() {
  queues_.clear();  // waits for the copies, which read the tensors
  staged_point_->Set({});
}

Result<void> DeviceSave::Digest(SavePlan& plan, const SavedChunks* base) {
  plan.unchanged.resize(plan.layout->chunks.size());
  plan.pages.resize(plan.layout->chunks.size());
  for (const auto& [device, queue] : queues_) CAIRN_TRY(DigestOn(device, plan, base));
  digested_ = true;
  if (base != nullptr) compared_ = base->step;
  return {};
}

Result<void> DeviceSave::DigestOn(int device, SavePlan& plan, const SavedChunks* base) {
  // A device compares with digests in its own memory only.
  DeviceMemory base_page_digests;
  if (base != nullptr && base->page_digests.contains(device)) {
    base_page_digests = base->page_digests.at(device);
  }
  const PlanLayout& layout = *plan.layout;
  BaseCursor cursor(base, layout);
  std::vector<DigestJob> jobs;
  std::vector<const PlannedShard*> bases;  // base of each shard on the device
  uint64_t page = 0;
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    const PlannedShard* found = cursor.Find(i);
    if (layout.shards[i].source->device != device) continue;
    if (base_page_digests.data() == nullptr ||
        (found != nullptr && found->source->device != device)) {
      found = nullptr;
    }
    bases.push_back(found);
    const uint64_t first_page = plan.sources[i].first_page_digest = page;
    for (const ShardChunk& chunk : layout.ChunksOf(layout.shards[i])) {
      DigestJob job{.source = plan.SourceOf(i).view(),
                    .begin_bytes = chunk.begin_bytes,
                    .length_bytes = chunk.length_bytes};
      if (found != nullptr) {
        const auto in_base = static_cast<size_t>(found - base->layout->shards.data());
        job.base_page = base->sources[in_base].first_page_digest + (page - first_page);
      }
      jobs.push_back(std::move(job));
      page += kv::PageCount(chunk.length_bytes);
    }
  }
  if (jobs.empty()) return {};  // only an earlier plan has tensors on the device
  DeviceQueue& queue = *queues_.at(device);
  CAIRN_TRY_ASSIGN(const DeviceQueue::Digests digests, queue.Digest(jobs, base_page_digests));

  // The page digests of changed chunks are needed on the host.
  std::vector<DeviceQueue::PageRange> ranges;
  std::vector<ChunkPages*> wanted;
  auto found = bases.begin();
  for (size_t s = 0; s < layout.shards.size(); ++s) {
    const PlannedShard& shard = layout.shards[s];
    if (shard.source->device != device) continue;
    const PlannedShard* const shard_base = *found++;
    uint64_t first = plan.sources[s].first_page_digest;
    for (size_t chunk = shard.first_chunk; chunk < shard.end_chunk; ++chunk) {
      const uint64_t count = kv::PageCount(layout.chunks[chunk].length_bytes);
      ChunkPages& pages = plan.pages[chunk];
      if (shard_base != nullptr) {
        for (uint64_t i = 0; i < count; ++i) pages.changed.push_back(digests.IsChanged(first + i));
      }
      if (shard_base != nullptr && std::ranges::find(pages.changed, true) == pages.changed.end()) {
        const size_t in_base = shard_base->first_chunk + (chunk - shard.first_chunk);
        plan.unchanged[chunk] = base->chunks[in_base].digest;
        pages.changed.clear();
      } else {
        ranges.push_back({.first = first, .count = count});
        wanted.push_back(&pages);
      }
      first += count;
    }
  }
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> page_digests,
                   queue.FetchPageDigests(digests.page_digests, ranges));
  auto at = page_digests.begin();
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto end = at + static_cast<ptrdiff_t>(ranges[i].count);
    wanted[i]->page_digests.assign(at, end);
    at = end;
  }
  page_digests_[device] = digests.page_digests;
  return {};
}

Result<void> DeviceSave::CheckUnchanged(const SavePlan& plan) {
  CAIRN_CHECK(digested_);
  for (const auto& [device, queue] : queues_) CAIRN_TRY(CheckUnchangedOn(device, plan));
  return {};
}

Result<void> DeviceSave::CheckUnchangedOn(int device, const SavePlan& plan) {
  std::vector<DigestJob> jobs;
  std::vector<size_t> tensors;  // tensor of each page of the jobs
  for (size_t i = 0; i < plan.shards().size(); ++i) {
    const PlannedShard& shard = plan.shards()[i];
    if (shard.source->device != device || plan.sources[i].is_stable) continue;
    uint64_t page = plan.sources[i].first_page_digest;
    for (size_t at = shard.first_chunk; at < shard.end_chunk; ++at) {
      const ShardChunk& chunk = plan.layout->chunks[at];
      const uint64_t count = kv::PageCount(chunk.length_bytes);
      if (!plan.unchanged[at]) {
        jobs.push_back({.source = plan.SourceOf(i).view(),
                        .begin_bytes = chunk.begin_bytes,
                        .length_bytes = chunk.length_bytes,
                        .base_page = page});
        tensors.insert(tensors.end(), count, shard.tensor);
      }
      page += count;
    }
  }
  if (jobs.empty()) return {};
  CAIRN_TRY_ASSIGN(const DeviceQueue::Digests digests,
                   queues_.at(device)->Digest(jobs, page_digests_.at(device)));
  for (size_t page = 0; page < tensors.size(); ++page) {
    if (!digests.IsChanged(page)) continue;
    return Fail(kv::PayloadChangedError().WithKey(plan.tensors()[tensors[page]].fqn));
  }
  return {};
}

Result<bool> DeviceSave::TakeSnapshot(SavePlan& plan) {
  CAIRN_CHECK(digested_);
  std::map<int, uint64_t> bytes;
  for (size_t i = 0; i < plan.shards().size(); ++i) {
    if (!NeedsSnapshot(plan, i)) continue;
    const PlannedShard& shard = plan.shards()[i];
    bytes[shard.source->device] += RoundUp(plan.layout->LengthOf(shard), kSnapshotAlignment);
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
    snapshots_[device] = *std::move(memory);
  }
  std::map<int, uint64_t> used;
  for (size_t i = 0; i < plan.shards().size(); ++i) {
    if (!NeedsSnapshot(plan, i)) continue;
    const TensorView source = plan.SourceOf(i).view();
    std::byte* const target = snapshots_.at(source.device).data() + used[source.device];
    const uint64_t length_bytes = plan.layout->LengthOf(plan.shards()[i]);
    CAIRN_TRY(queues_.at(source.device)->Pack(source, 0, length_bytes, target));
    used[source.device] += RoundUp(length_bytes, kSnapshotAlignment);
    plan.sources[i].data = target;
    plan.sources[i].is_copy = true;
  }
  CAIRN_TRY(MarkStaged());
  for (const DeviceStream& stream : streams_) CAIRN_TRY(staged_point_->MakeStreamWait(stream));
  return true;
}

Result<void> DeviceSave::StartCopy(const TensorView& source, uint64_t begin_bytes,
                                   std::span<std::byte> target) {
  last_queue_ = queues_.at(source.device).get();
  used_queues_.insert(last_queue_);
  copied_bytes_ += target.size();
  return last_queue_->CopyOut(source, begin_bytes, target);
}

Result<void> DeviceSave::Zero(std::span<std::byte> target) {
  CAIRN_CHECK(last_queue_ != nullptr);
  used_queues_.insert(last_queue_);
  return last_queue_->ZeroOut(target);
}

Result<uint64_t> DeviceSave::Flush() {
  std::vector<std::shared_ptr<const DeviceFence>> fences;
  for (DeviceQueue* const queue : used_queues_) {
    CAIRN_TRY_ASSIGN(fences.emplace_back(), queue->Flush());
  }
  used_queues_.clear();
  const MutexLock lock(marks_mutex_);
  marks_.emplace(next_mark_, std::move(fences));
  return next_mark_++;
}

Result<bool> DeviceSave::HasReached(uint64_t mark) {
  const MutexLock lock(marks_mutex_);
  const auto found = marks_.find(mark);
  if (found == marks_.end()) return true;
  for (const auto& fence : found->second) {
    CAIRN_TRY_ASSIGN(const bool passed, fence->Passed());
    if (!passed) return false;
  }
  marks_.erase(found);
  return true;
}

Result<void> DeviceSave::Await(uint64_t mark) {
  std::vector<std::shared_ptr<const DeviceFence>> fences;
  {
    const MutexLock lock(marks_mutex_);
    const auto found = marks_.find(mark);
    if (found == marks_.end()) return {};
    fences = found->second;
  }
  for (const auto& fence : fences) CAIRN_TRY(fence->Await());
  const MutexLock lock(marks_mutex_);
  marks_.erase(mark);
  return {};
}

Result<void> DeviceSave::MarkStaged() {
  if (staged_point_->is_set()) return {};  // by TakeSnapshot
  StagedPoint::Fences fences;
  for (const auto& [device, queue] : queues_) {
    CAIRN_TRY_ASSIGN(auto fence, queue->Flush());
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
