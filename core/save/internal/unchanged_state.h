#pragma once
/// Finds out whether the bytes of a complete state equal the bytes that the last save wrote.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/internal/groups.h"
#include "core/base/internal/progress_meter.h"
#include "core/base/progress.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/internal/tensor_payload.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {

struct StateComparison {
  bool is_unchanged = false;
  uint64_t compared_bytes = 0;  // reported as progress
};

/// The comparison of CompareState. Threads: one, which works on the pool.
class Comparison {
 public:
  Comparison(SavePlan& plan, const SavedChunks& saved, kv::WorkerPool& pool)
      : plan_(plan),
        saved_(saved),
        pool_(pool),
        scratch_(pool.thread_count(), std::vector<std::byte>(kv::kPageBytes)) {
    CAIRN_CHECK(saved.chunks.size() == plan.layout->chunks.size());
    chunks_.reserve(saved.chunks.size());
    for (size_t i = 0; i < plan.shards().size(); ++i) ListChunks(i);
    page_digests_.resize(page_count_);
  }

  Result<StateComparison> Run(const Progress& progress) {
    ProgressMeter meter(progress, plan_.own_bytes);
    StateComparison comparison{.compared_bytes = taken_bytes_};
    if (taken_bytes_ > 0) CAIRN_TRY(meter.Add(taken_bytes_));
    for (size_t begin = 0; begin < chunks_.size() && !has_change_;) {
      size_t end = begin;
      uint64_t bytes = 0;
      while (end < chunks_.size() && bytes < kRoundBytes) {
        bytes += chunks_[end++].payload.length_bytes();
      }
      const auto groups =
          GroupByBytes(std::span(chunks_).subspan(begin, end - begin),
                       [](const Chunk& chunk) { return chunk.payload.length_bytes(); });
      pool_.Run(groups.size(), [&](size_t i, size_t worker) {
        for (Chunk& chunk : groups[i]) {
          if (!has_change_.load(std::memory_order_relaxed)) Compare(chunk, worker);
        }
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
  // Threads wait for each other, and progress is reported, after this many bytes.
  static constexpr uint64_t kRoundBytes = 256 << 20;

  // Contains all that Compare needs: while all threads read tensors, a cache miss in the plan takes
  // as long as digesting several KiB.
  struct Chunk {
    size_t index = 0;  // into PlanLayout::chunks
    HostPayload payload;
    size_t first_page = 0;  // in page_digests_
    const SavedChunks::Chunk* saved = nullptr;
    bool is_digested = false;
  };

  void ListChunks(size_t shard_index) {
    const PlannedShard& shard = plan_.shards()[shard_index];
    CAIRN_CHECK(!shard.on_device() && plan_.unchanged.empty() && plan_.pages.empty());
    const TensorRef source = plan_.SourceOf(shard_index);
    for (size_t i = shard.first_chunk; i < shard.end_chunk; ++i) {
      const ShardChunk& chunk = plan_.layout->chunks[i];
      if (plan_.IsTakenFromBase(shard_index, i)) {
        taken_bytes_ += chunk.length_bytes;
        continue;
      }
      chunks_.push_back({.index = i,
                         .payload = {source, chunk.begin_bytes, chunk.length_bytes},
                         .first_page = page_count_,
                         .saved = &saved_.chunks[i]});
      page_count_ += kv::PageCount(chunk.length_bytes);
    }
  }

  std::span<uint64_t> PageDigests(const Chunk& chunk) {
    return std::span(page_digests_)
        .subspan(chunk.first_page, kv::PageCount(chunk.payload.length_bytes()));
  }

  void Compare(Chunk& chunk, size_t worker) {
    const std::span<uint64_t> pages = PageDigests(chunk);
    chunk.payload.DigestPages(scratch_[worker], pages);
    chunk.is_digested = true;
    const kv::Digest digest = kv::RootDigest(pages, chunk.payload.length_bytes());
    if (digest != chunk.saved->digest) has_change_ = true;
  }

  void KeepPageDigests() {
    plan_.pages.resize(plan_.layout->chunks.size());
    for (const Chunk& chunk : chunks_) {
      if (!chunk.is_digested) continue;
      const std::span<const uint64_t> pages = PageDigests(chunk);
      plan_.pages[chunk.index].page_digests.assign(pages.begin(), pages.end());
    }
  }

  SavePlan& plan_;
  const SavedChunks& saved_;
  kv::WorkerPool& pool_;
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  std::vector<Chunk> chunks_;                    // in the order of the plan
  uint64_t taken_bytes_ = 0;                     // bytes of chunks that are not in chunks_
  size_t page_count_ = 0;
  std::vector<uint64_t> page_digests_;
  std::atomic<bool> has_change_ = false;
};

/// Digests the chunks of the plan, except chunks that are taken from the base, in order, on all
/// threads of the pool, until one has another digest than in `saved`. The page digests of the
/// chunks up to there are then in SavePlan::pages, so that the save does not compute them
/// again. Requires tensors in host memory, and that `saved` has the shards and chunks of the plan.
/// Memory: 8 bytes per 64 KiB page. kCancelled: as asked by `progress`.
inline Result<StateComparison> CompareState(SavePlan& plan, const SavedChunks& saved,
                                            kv::WorkerPool& pool, const Progress& progress) {
  return Comparison(plan, saved, pool).Run(progress);
}

}  // namespace cairn::core::internal
