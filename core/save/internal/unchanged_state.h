#pragma once
/// Finds out whether the bytes of a complete state equal the bytes that the last save wrote.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
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
    CAIRN_CHECK(plan.unchanged.empty() && plan.pages.empty());
    chunks_.reserve(std::min(kRoundChunks, saved.chunks.size()));
  }

  Result<StateComparison> Run(const Progress& progress) {
    ProgressMeter meter(progress, plan_.own_bytes);
    StateComparison comparison;
    while (const uint64_t bytes = ListRound()) {
      page_digests_.resize(page_count_);
      const auto groups = GroupByBytes(
          std::span(chunks_), [](const Chunk& chunk) { return chunk.payload.length_bytes(); });
      pool_.Run(groups.size(), [&](size_t i, size_t worker) {
        for (Chunk& chunk : groups[i]) {
          if (!has_change_.load(std::memory_order_relaxed)) Compare(chunk, worker);
        }
      });
      for (const Chunk& chunk : chunks_) {
        if (chunk.is_digested && IsKept(chunk)) kept_.emplace_back(chunk.index, chunk.first_page);
      }
      if (has_change_) break;
      comparison.compared_bytes += bytes;
      CAIRN_TRY(meter.Add(bytes));
    }
    comparison.is_unchanged = !has_change_;
    if (has_change_) KeepPageDigests();
    return comparison;
  }

 private:
  // Threads wait for each other, and progress is reported, after this many bytes or chunks.
  static constexpr uint64_t kRoundBytes = 256 << 20;
  static constexpr size_t kRoundChunks = 32 << 10;
  // The digests of smaller chunks are computed again if there is a change, which costs less than to
  // remember them.
  static constexpr uint64_t kMinKeptBytes = kv::kPageBytes / 16;

  // Contains all that Compare needs: while all threads read tensors, a cache miss in the plan takes
  // as long as digesting several KiB.
  struct Chunk {
    size_t index = 0;  // into PlanLayout::chunks
    HostPayload payload;
    size_t first_page = 0;  // in page_digests_, if it is kept
    const SavedChunks::Chunk* saved = nullptr;
    bool is_digested = false;
  };
  static bool IsKept(const Chunk& chunk) { return chunk.payload.length_bytes() >= kMinKeptBytes; }

  // Lists the chunks of the next round. Returns their bytes, with those that are not compared.
  uint64_t ListRound() {
    uint64_t bytes = 0;
    chunks_.clear();
    for (; next_shard_ < plan_.shards().size(); ++next_shard_) {
      const PlannedShard& shard = plan_.shards()[next_shard_];
      CAIRN_CHECK(!shard.on_device());
      const TensorRef source = plan_.SourceOf(next_shard_);
      for (; next_chunk_ < shard.end_chunk; ++next_chunk_) {
        if (bytes >= kRoundBytes || chunks_.size() == kRoundChunks) return bytes;
        const ShardChunk& chunk = plan_.layout->chunks[next_chunk_];
        bytes += chunk.length_bytes;
        if (plan_.IsTakenFromBase(next_shard_, next_chunk_)) continue;
        chunks_.push_back({.index = next_chunk_,
                           .payload = {source, chunk.begin_bytes, chunk.length_bytes},
                           .first_page = page_count_,
                           .saved = &saved_.chunks[next_chunk_]});
        if (IsKept(chunks_.back())) page_count_ += kv::PageCount(chunk.length_bytes);
      }
    }
    return bytes;
  }

  void Compare(Chunk& chunk, size_t worker) {
    const uint64_t length_bytes = chunk.payload.length_bytes();
    uint64_t only_page = 0;
    const auto kept = std::span(page_digests_).subspan(chunk.first_page);
    const auto pages =
        IsKept(chunk) ? kept.first(kv::PageCount(length_bytes)) : std::span(&only_page, 1);
    chunk.payload.DigestPages(scratch_[worker], pages);
    chunk.is_digested = true;
    if (kv::RootDigest(pages, length_bytes) != chunk.saved->digest) has_change_ = true;
  }

  void KeepPageDigests() {
    if (!kept_.empty()) plan_.pages.resize(kept_.back().first + 1);
    for (const auto& [index, first_page] : kept_) {
      const auto begin = page_digests_.begin() + static_cast<ptrdiff_t>(first_page);
      const uint64_t pages = kv::PageCount(plan_.layout->chunks[index].length_bytes);
      plan_.pages[index].page_digests.assign(begin, begin + static_cast<ptrdiff_t>(pages));
    }
  }

  SavePlan& plan_;
  const SavedChunks& saved_;
  kv::WorkerPool& pool_;
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  size_t next_shard_ = 0;
  size_t next_chunk_ = 0;      // of all shards
  std::vector<Chunk> chunks_;  // of the current round
  size_t page_count_ = 0;
  std::vector<uint64_t> page_digests_;
  std::vector<std::pair<size_t, size_t>> kept_;  // index and first page, ascending
  std::atomic<bool> has_change_ = false;
};

/// Digests the chunks of the plan, except chunks that are taken from the base, in order, on all
/// threads of the pool, until one has another digest than in `saved`. The page digests of the
/// chunks up to there, except small ones, are then in SavePlan::pages, so that the save does not
/// compute them again. Requires tensors in host memory, and that `saved` has the shards and chunks
/// of the plan. Memory: 4 MiB, and 24 bytes per 64 KiB page. kCancelled: as asked by `progress`.
inline Result<StateComparison> CompareState(SavePlan& plan, const SavedChunks& saved,
                                            kv::WorkerPool& pool, const Progress& progress) {
  return Comparison(plan, saved, pool).Run(progress);
}

}  // namespace cairn::core::internal
