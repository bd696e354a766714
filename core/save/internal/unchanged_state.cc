#include "core/save/internal/unchanged_state.h"

#include <atomic>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/save/internal/tensor_payload.h"
#include "kv/digest.h"
#include "kv/payload.h"

namespace cairn::core::internal {
namespace {

// Threads wait for each other, and progress is reported, after this many bytes.
constexpr uint64_t kRoundBytes = 256 << 20;

class Comparison {
 public:
  Comparison(SavePlan& plan, const SavedChunks& saved, WorkerPool& pool)
      : plan_(plan),
        saved_(saved),
        pool_(pool),
        scratch_(pool.thread_count(), std::vector<std::byte>(kv::kPageBytes)) {
    CAIRN_CHECK(saved.shards.size() == plan.shards.size());
    for (size_t i = 0; i < plan.shards.size(); ++i) ListChunks(i);
    page_digests_.resize(page_count_);
  }

  Result<StateComparison> Run(const Progress& progress) {
    ProgressMeter meter(progress, plan_.own_bytes);
    StateComparison comparison;
    for (size_t begin = 0; begin < chunks_.size() && !has_change_;) {
      size_t end = begin;
      uint64_t bytes = 0;
      while (end < chunks_.size() && bytes < kRoundBytes) bytes += chunks_[end++].length_bytes;
      pool_.Run(end - begin, [&](size_t i, size_t worker) {
        if (!has_change_.load(std::memory_order_relaxed)) Compare(chunks_[begin + i], worker);
      });
      begin = end;
      if (has_change_) break;
      comparison.compared_bytes += bytes;
      CAIRN_TRY(meter.Add(bytes));
    }
    comparison.is_unchanged = !has_change_;
    if (has_change_) KeepPageDigests();
    return comparison;
  }

 private:
  struct Chunk {
    size_t shard = 0;
    uint64_t index = 0;  // counted from the shard's first_chunk
    uint64_t begin_bytes = 0;
    uint64_t length_bytes = 0;
    size_t first_page = 0;  // in page_digests_
    bool is_digested = false;
  };

  void ListChunks(size_t shard_index) {
    const PlannedShard& shard = plan_.shards[shard_index];
    CAIRN_CHECK(!shard.on_device() && shard.unchanged.empty() && shard.pages.empty() &&
                saved_.shards[shard_index].chunks.size() == shard.chunk_count());
    for (uint64_t i = 0; i < shard.chunk_count(); ++i) {
      const uint64_t length = shard.grid.length_bytes(shard.first_chunk + i);
      chunks_.push_back({.shard = shard_index,
                         .index = i,
                         .begin_bytes = shard.grid.offset_bytes(shard.first_chunk + i),
                         .length_bytes = length,
                         .first_page = page_count_});
      page_count_ += kv::PageCount(length);
    }
  }

  std::span<uint64_t> PageDigests(const Chunk& chunk) {
    return std::span(page_digests_).subspan(chunk.first_page, kv::PageCount(chunk.length_bytes));
  }

  void Compare(Chunk& chunk, size_t worker) {
    const HostPayload payload(plan_.shards[chunk.shard].source, chunk.begin_bytes,
                              chunk.length_bytes);
    const std::span<uint64_t> pages = PageDigests(chunk);
    for (size_t page = 0; page < pages.size(); ++page) {
      pages[page] = kv::PageDigest(payload.Page(page, scratch_[worker]));
    }
    chunk.is_digested = true;
    const kv::Digest& saved = saved_.shards[chunk.shard].chunks[chunk.index].digest;
    if (kv::RootDigest(pages, chunk.length_bytes) != saved) has_change_ = true;
  }

  void KeepPageDigests() {
    for (const Chunk& chunk : chunks_) {
      if (!chunk.is_digested) continue;
      PlannedShard& shard = plan_.shards[chunk.shard];
      shard.pages.resize(shard.chunk_count());
      const std::span<const uint64_t> pages = PageDigests(chunk);
      shard.pages[chunk.index].page_digests.assign(pages.begin(), pages.end());
    }
  }

  SavePlan& plan_;
  const SavedChunks& saved_;
  WorkerPool& pool_;
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  std::vector<Chunk> chunks_;                    // in the order of the plan
  size_t page_count_ = 0;
  std::vector<uint64_t> page_digests_;
  std::atomic<bool> has_change_ = false;
};

}  // namespace

Result<StateComparison> CompareState(SavePlan& plan, const SavedChunks& saved, WorkerPool& pool,
                                     const Progress& progress) {
  return Comparison(plan, saved, pool).Run(progress);
}

}  // namespace cairn::core::internal
