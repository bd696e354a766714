// 1. Requests that devices may be able to serve are divided into the complete chunks that they
//    need.
// 2. The chunks are read in batches, by the threads of the transfers, directly to the targets.
// 3. Each batch is digested on its devices; only the digests are copied to the host.

#include "core/load/internal/direct_load.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/device/internal/device_queues.h"
#include "core/device/internal/device_transfers.h"
#include "core/step/internal/owners.h"
#include "core/step/internal/tensor_records.h"
#include "kv/digest.h"
#include "kv/read_range.h"

namespace cairn::core::internal {
namespace {

// Smaller requests are loaded as fast through blocks, which needs no call per extent.
constexpr uint64_t kMinRequestBytes = 1ull << 20;
// Bytes that are read before they are digested. The digest takes at most 1 % of the time.
constexpr uint64_t kBatchBytes = 256ull << 20;

// A complete chunk that one request needs.
struct Job {
  size_t request = 0;
  kv::Extents extents;
  kv::Digest digest;
  std::span<std::byte> target;
};

bool MayBeDirect(const LoadRequest& request) {
  const auto bytes = TensorBytes(request.target.dtype, request.target.shape);
  return request.target.device != kHostDevice && bytes && *bytes >= kMinRequestBytes &&
         IsContiguous(request.target.shape, request.target.strides);
}

// Returns the target of the chunk's bytes, if the request needs all of them, they are contiguous
// there, and they are stored as they are.
std::optional<std::span<std::byte>> TargetOf(const LoadRequest& request, const ChunkInfo& chunk) {
  if (!chunk.deltas.empty() || Intersect(chunk.box, request.box) != chunk.box) return std::nullopt;
  Box inside = chunk.box;
  for (size_t d = 0; d < inside.offsets.size(); ++d) inside.offsets[d] -= request.box.offsets[d];
  const auto offset = ContiguousOffsetBytes(request.target.dtype, request.box.sizes, inside);
  if (!offset) return std::nullopt;
  return std::span(request.target.data + *offset, chunk.length_bytes());
}

bool IsEmpty(const Box& box) {
  return std::ranges::find(box.sizes, uint64_t{0}) != box.sizes.end();
}

class Loader {
 public:
  Loader(const StepView& view, std::span<const LoadRequest> requests, DeviceBackend* backend,
         const Progress& progress)
      : view_(view), requests_(requests), transfers_(backend), progress_(progress) {
    direct_.resize(requests.size());
    for (const LoadRequest& request : requests) {
      missing_bytes_.push_back(BytesOf(request));
      total_bytes_ += BytesOf(request);
    }
  }

  Result<void> Plan() {
    std::vector<std::string> fqns;
    std::multimap<std::string, size_t> by_fqn;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (!MayBeDirect(requests_[i])) continue;
      fqns.push_back(requests_[i].fqn);
      by_fqn.emplace(requests_[i].fqn, i);
    }
    if (fqns.empty()) return {};
    // Most systems do not support direct reads; then nothing more is planned.
    CAIRN_TRY_ASSIGN(const bool reached, ReachesAChunkOf(fqns.front()));
    if (!reached) return {};
    CAIRN_TRY_ASSIGN(std::vector<TensorInfo> tensors, FindNamed(view_, std::move(fqns)));
    // Aliases, which are seldom this large, are loaded through host memory.
    std::erase_if(tensors, [](const TensorInfo& tensor) { return tensor.alias_of.has_value(); });
    for (const TensorInfo& tensor : tensors) {
      const auto [begin, end] = by_fqn.equal_range(tensor.fqn);
      for (auto at = begin; at != end; ++at) direct_[at->second] = true;
    }
    const auto planned =
        ForEachChunkOf(view_, tensors, [&](size_t i, const ChunkInfo& chunk) -> Result<void> {
          const auto [begin, end] = by_fqn.equal_range(tensors[i].fqn);
          for (auto at = begin; at != end; ++at) Add(at->second, chunk);
          return {};
        });
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (!planned || missing_bytes_[i] > 0) direct_[i] = false;
    }
    return {};  // the load through host memory returns the error, if there is one
  }

  std::set<int> Devices() const {
    std::set<int> devices;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (direct_[i]) devices.insert(requests_[i].target.device);
    }
    return devices;
  }

  Result<void> Run(const DeviceQueues& queues) {
    std::erase_if(jobs_, [this](const Job& job) { return !direct_[job.request]; });
    for (size_t begin = 0; begin < jobs_.size();) {
      uint64_t bytes = 0;
      size_t end = begin;
      while (end < jobs_.size() && bytes < kBatchBytes) bytes += jobs_[end++].target.size();
      const std::span batch = std::span(jobs_).subspan(begin, end - begin);
      CAIRN_TRY(RunBatch(batch, queues));
      begin = end;
      for (const Job& job : batch) done_bytes_ += direct_[job.request] ? job.target.size() : 0;
      if (progress_ && !progress_(done_bytes_, total_bytes_)) {
        return Fail(ErrorCode::kCancelled, "stopped as asked");
      }
    }
    return {};
  }

  DirectLoad TakeResult() {
    DirectLoad done{.rest = {}, .bytes_read = bytes_read_};
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (direct_[i]) {
        done.loaded_bytes += BytesOf(requests_[i]);
      } else {
        done.rest.push_back(requests_[i]);
      }
    }
    return done;
  }

 private:
  static uint64_t BytesOf(const LoadRequest& request) {
    return *TensorBytes(request.target.dtype, request.target.shape);
  }

  void Add(size_t i, const ChunkInfo& chunk) {
    const LoadRequest& request = requests_[i];
    if (!direct_[i] || IsEmpty(Intersect(chunk.box, request.box))) return;
    const auto target = TargetOf(request, chunk);
    if (!target || target->size() > missing_bytes_[i]) {
      direct_[i] = false;
      return;
    }
    missing_bytes_[i] -= target->size();
    jobs_.push_back(
        {.request = i, .extents = chunk.extents, .digest = chunk.digest, .target = *target});
  }

  // True if devices can read the segment of the tensor's first chunk. False also if a record is
  // damaged: the load through host memory returns the error.
  Result<bool> ReachesAChunkOf(const std::string& fqn) {
    auto tensor = FindTensor(view_, fqn);
    if (tensor && tensor->alias_of) tensor = FindTensor(view_, *tensor->alias_of);
    if (!tensor) return false;
    Result<bool> reached = false;
    (void)ForEachChunk(view_, *tensor, [&](const ChunkInfo& chunk) -> Result<void> {
      reached = Open(chunk.extents.front().segment_id);
      return Fail(ErrorCode::kCancelled, "one is enough");
    });
    CloseFiles();
    return reached;
  }

  // Opens the segment. Returns false if devices cannot read it.
  Result<bool> Open(uint64_t segment_id) {
    const auto found = files_.find(segment_id);
    if (found != files_.end()) return found->second.has_value();
    auto file = view_.snapshot->OpenDirect(segment_id);
    std::optional<kv::DirectFile>& opened = files_[segment_id];
    if (!file || !*file) return false;  // the load through host memory returns the error
    CAIRN_TRY_ASSIGN(const bool reached,
                     transfers_.Open((*file)->fd, (*file)->path, DeviceTransfers::FileUse::kRead));
    if (reached) opened = std::move(**file);
    return reached;
  }

  // Waits for the reads and closes the files. An error is ignored: the digests will not match.
  void CloseFiles() {
    for (const auto& [segment_id, file] : files_) {
      if (!file) continue;
      (void)transfers_.Await(file->fd);
      transfers_.Close(file->fd);
    }
    files_.clear();
  }

  Result<void> RunBatch(std::span<const Job> batch, const DeviceQueues& queues) {
    for (const Job& job : batch) {
      if (direct_[job.request]) CAIRN_TRY(AddRead(job));
    }
    CAIRN_TRY(BeginRead());
    CloseFiles();
    std::map<int, std::vector<const Job*>> by_device;
    for (const Job& job : batch) {
      if (direct_[job.request]) by_device[requests_[job.request].target.device].push_back(&job);
    }
    for (const auto& [device, jobs] : by_device) {
      if (Check(queues.On(device), jobs)) continue;
      // The digests need device memory. If the device has failed, the load through blocks fails
      // too.
      for (const Job* const job : jobs) direct_[job->request] = false;
    }
    return {};
  }

  // Joins extents that are adjacent in the segment and in memory: the end of a chunk is seldom
  // aligned as direct I/O requires.
  Result<void> AddRead(const Job& job) {
    uint64_t at = 0;
    for (const kv::Extent& extent : job.extents) {
      const std::span<std::byte> target = job.target.subspan(at, extent.length_bytes);
      at += extent.length_bytes;
      if (read_.segment_id == extent.segment_id &&
          read_.offset_bytes + read_.target.size() == extent.offset_bytes &&
          read_.target.data() + read_.target.size() == target.data()) {
        read_.target = {read_.target.data(), read_.target.size() + target.size()};
        continue;
      }
      CAIRN_TRY(BeginRead());
      read_ = {.segment_id = extent.segment_id,
               .offset_bytes = extent.offset_bytes,
               .target = target,
               .device = requests_[job.request].target.device};
    }
    return {};
  }

  // Begins the read that AddRead has collected. If it fails, the digests will not match.
  Result<void> BeginRead() {
    const PlannedRead read = std::exchange(read_, {});
    if (read.target.empty()) return {};
    CAIRN_TRY_ASSIGN(const bool reached, Open(read.segment_id));
    if (!reached) return {};
    const int fd = files_.at(read.segment_id)->fd;
    if (transfers_.Read(fd, read.device, read.target, read.offset_bytes)) {
      bytes_read_ += read.target.size();
    }
    return {};
  }

  Result<void> Check(DeviceQueue& queue, std::span<const Job* const> jobs) {
    std::vector<DigestJob> digest_jobs;
    uint64_t pages = 0;
    for (const Job* const job : jobs) {
      digest_jobs.push_back({.source = {.dtype = DType::kUInt8,
                                        .shape = {job->target.size()},
                                        .strides = {},
                                        .data = job->target.data(),
                                        .device = queue.device()},
                             .length_bytes = job->target.size()});
      pages += kv::PageCount(job->target.size());
    }
    CAIRN_TRY_ASSIGN(const DeviceQueue::Digests digests, queue.Digest(digest_jobs, nullptr));
    const DeviceQueue::PageRange all{.first = 0, .count = pages};
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> page_digests,
                     queue.FetchPageDigests(*digests.page_digests, {&all, 1}));
    std::span<const uint64_t> rest = page_digests;
    for (const Job* const job : jobs) {
      const auto count = static_cast<size_t>(kv::PageCount(job->target.size()));
      if (kv::RootDigest(rest.first(count), job->target.size()) != job->digest) {
        direct_[job->request] = false;
      }
      rest = rest.subspan(count);
    }
    return {};
  }

  struct PlannedRead {
    uint64_t segment_id = 0;
    uint64_t offset_bytes = 0;
    std::span<std::byte> target;
    int device = 0;
  };

  const StepView& view_;
  const std::span<const LoadRequest> requests_;
  std::vector<bool> direct_;             // by request
  std::vector<uint64_t> missing_bytes_;  // by request: not planned yet
  std::vector<Job> jobs_;                // includes requests that turned out not to be direct
  // Open segments by id; empty for those that devices cannot read. Declared before the transfers,
  // which use them and are destroyed first.
  std::map<uint64_t, std::optional<kv::DirectFile>> files_;
  DeviceTransfers transfers_;
  PlannedRead read_;  // to which adjacent extents may still be added
  const Progress& progress_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace

Result<DirectLoad> LoadDirectly(const StepView& view, std::span<const LoadRequest> requests,
                                std::span<const DeviceStream> streams, const Progress& progress) {
  CAIRN_TRY_ASSIGN(DeviceBackend* const backend, FindDeviceBackend());
  Loader loader(view, requests, backend, progress);
  CAIRN_TRY(loader.Plan());
  if (const std::set<int> devices = loader.Devices(); !devices.empty()) {
    CAIRN_TRY_ASSIGN(const DeviceQueues queues, DeviceQueues::Open(devices, streams));
    CAIRN_TRY(loader.Run(queues));
  }
  return loader.TakeResult();
}

}  // namespace cairn::core::internal
