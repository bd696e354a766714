#include "core/save/internal/device_statistics.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/tensor/element_summary.h"
#include "kv/digest.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kWindowBytes = 16 << 20;  // of strided tensors, as row-major copies

class StatisticsPass {
 public:
  StatisticsPass(DeviceBackend& backend, DeviceQueue& queue) : backend_(backend), queue_(queue) {}

  Result<void> Add(const PlannedShard& shard, DType dtype, uint64_t chunk,
                   std::optional<kv::ChunkStatistics>& result) {
    chunks_.push_back({.result = &result, .summary = {}});
    const uint64_t begin = shard.grid.offset_bytes(chunk) - shard.skipped_bytes;
    const uint64_t length_bytes = shard.grid.length_bytes(chunk);
    const bool is_contiguous = IsContiguous(shard.source.shape, shard.source.strides);
    for (uint64_t at = 0; at < length_bytes; at += kv::kPageBytes) {
      const uint64_t page_bytes = std::min<uint64_t>(length_bytes - at, kv::kPageBytes);
      if (pages_.size() == DeviceQueue::kMaxSummarizedPages) CAIRN_TRY(Flush());
      const std::byte* page = shard.source.data + begin + at;
      if (!is_contiguous) {
        CAIRN_TRY_ASSIGN(page, Pack(shard.source, begin + at, page_bytes));
      }
      pages_.push_back(
          {.data = page, .length_bytes = static_cast<uint32_t>(page_bytes), .dtype = dtype});
      owners_.push_back(&chunks_.back());
    }
    return {};
  }

  Result<void> Finish() {
    CAIRN_TRY(Flush());
    for (const Chunk& chunk : chunks_) *chunk.result = chunk.summary.ToStatistics();
    return {};
  }

 private:
  struct Chunk {
    std::optional<kv::ChunkStatistics>* result = nullptr;
    ElementSummary summary;
  };

  // Copies one page of a strided tensor to the window.
  Result<const std::byte*> Pack(const TensorView& source, uint64_t begin_bytes,
                                uint64_t length_bytes) {
    if (window_ == nullptr) {
      CAIRN_TRY_ASSIGN(window_, backend_.Allocate(queue_.device(), kWindowBytes));
    }
    if (window_pages_ == kWindowBytes / kv::kPageBytes) CAIRN_TRY(Flush());
    std::byte* const page = window_->data() + window_pages_++ * kv::kPageBytes;
    CAIRN_TRY(queue_.Pack(source, begin_bytes, length_bytes, page));
    return page;
  }

  Result<void> Flush() {
    CAIRN_TRY_ASSIGN(const std::vector<ElementSummary> summaries, queue_.Summarize(pages_));
    for (size_t i = 0; i < summaries.size(); ++i) owners_[i]->summary.Add(summaries[i]);
    pages_.clear();
    owners_.clear();
    window_pages_ = 0;
    return {};
  }

  DeviceBackend& backend_;
  DeviceQueue& queue_;
  std::unique_ptr<DeviceMemory> window_;
  uint64_t window_pages_ = 0;
  std::deque<Chunk> chunks_;
  std::vector<ElementPage> pages_;
  std::vector<Chunk*> owners_;  // of each page
};

}  // namespace

Result<void> ComputeDeviceStatistics(DeviceBackend& backend, DeviceQueue& queue, SavePlan& plan,
                                     bool base_has_statistics) {
  StatisticsPass pass(backend, queue);
  for (PlannedShard& shard : plan.shards) {
    if (shard.source.device != queue.device()) continue;
    for (uint64_t chunk = 0; chunk < shard.chunk_count(); ++chunk) {
      if (shard.unchanged[chunk] && base_has_statistics) continue;
      CAIRN_TRY(pass.Add(shard, plan.tensors[shard.tensor].dtype, shard.first_chunk + chunk,
                         shard.pages[chunk].statistics));
    }
  }
  return pass.Finish();
}

}  // namespace cairn::core::internal
