#pragma once
/// Encodes changed chunks as deltas relative to the base step.
///
/// The pages of the base that differ are read, verified and compared with the new ones, unless
/// staging has done so in memory (staging.h). A chunk gets a delta if that is at most half as long
/// as the pages that would be written otherwise, and if the chunk's deltas together are then at
/// most half as long as the chunk, so that a load reads at most 1.5 times its bytes. Chunks that
/// cannot have a delta are written as before.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/codec/internal/delta_encoder.h"
#include "core/save/internal/chunk_source.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "kv/base/digest.h"
#include "kv/base/read_range.h"
#include "kv/io/worker_pool.h"
#include "schema/dtype.h"

namespace cairn::core::internal {

/// Chunks that are longer have no deltas: their base would have to be in memory.
inline constexpr uint64_t kMaxComparedBytes = 16 << 20;
/// If a chunk of a tensor was tried in vain, only every N-th chunk of the tensor is tried.
inline constexpr uint32_t kDeltaTryInterval = 16;

/// Returns the longest delta of a chunk that pays off, if pages of `changed_bytes` have changed.
constexpr uint64_t MaxDeltaBytes(uint64_t chunk_bytes, uint64_t changed_bytes) {
  return std::min(chunk_bytes, changed_bytes) / 2;
}

/// Threads: one caller, which works on the pool.
class ChunkDeltas {
 public:
  /// `max_deltas` is the largest number of deltas of a chunk; 0 encodes none. Everything must
  /// outlive the object.
  ChunkDeltas(const SavePlan& plan, const StepView& base, kv::WorkerPool& pool, uint32_t max_deltas)
      : plan_(plan),
        base_(base),
        pool_(pool),
        max_deltas_(max_deltas),
        encoders_(max_deltas > 0 ? pool.thread_count() : 0),
        scratch_(encoders_.size(), std::vector<std::byte>(kv::kPageBytes)) {}

  /// True if the chunk, whose bytes differ from its base, may become a delta.
  bool IsPossible(const PlannedChunk& chunk) const {
    return chunk.is_candidate() && chunk.length_bytes <= kMaxComparedBytes &&
           chunk.base->deltas.size() < max_deltas_;
  }
  /// True if Encode may set a delta of the chunk. It then needs the chunk's base_page_digests.
  bool IsWorthEncoding(const PlannedChunk& chunk) const {
    return !plan_.has_deltas && !chunk.is_on_device() && IsPossible(chunk);
  }
  /// Removes a delta that was encoded when the chunk was staged, if the chunk must not have it or
  /// its base is not the base of the delta.
  void CheckStaged(PlannedChunk& chunk) const {
    // The base is found by its number, and may have been replaced since the state was staged.
    const bool allowed = IsPossible(chunk) && chunk.base->digest == chunk.delta_base &&
                         chunk.delta.size() <= MaxNextDeltaBytes(chunk, chunk.length_bytes);
    if (!allowed) chunk.delta.clear();
  }

  /// Sets `delta` of the chunks for which a delta pays off. An error of a read is ignored: the
  /// chunk gets no delta. Memory: 16 MiB of the base, and the deltas. Requires that no work of the
  /// pool is running.
  void Encode(std::span<PlannedChunk> chunks) {
    std::vector<Job> jobs;
    uint64_t bytes = 0;
    for (PlannedChunk& chunk : chunks) {
      auto job = MakeJob(chunk);
      if (!job) continue;
      bytes += job->bytes.size();
      jobs.push_back(*std::move(job));
      if (bytes < kBatchBytes) continue;
      RunBatch(jobs);
      jobs.clear();
      bytes = 0;
    }
    RunBatch(jobs);
  }

 private:
  /// A chunk that is being encoded, and the pages of its base that differ.
  struct Job {
    PlannedChunk* chunk = nullptr;
    std::string fqn;
    std::vector<uint64_t> pages;
    std::vector<std::byte> bytes;  // bytes of these pages, one after the other
    DeltaChain chain;
  };
  static constexpr uint64_t kBatchBytes = 16 << 20;

  static uint64_t PageBytes(const PlannedChunk& chunk, uint64_t page) {
    return std::min(kv::kPageBytes, chunk.length_bytes - page * kv::kPageBytes);
  }
  /// Returns the longest delta that pays off, together with the deltas before it.
  static uint64_t MaxNextDeltaBytes(const PlannedChunk& chunk, uint64_t changed_bytes) {
    uint64_t before = 0;
    for (const kv::Extent& delta : chunk.base->deltas) before += delta.length_bytes;
    // All of them, with the delta of zeros of a compressed chunk, are never longer than the chunk.
    uint64_t all = chunk.length_bytes / 2;
    if (chunk.base->stored().is_compressed()) {
      all = std::min(chunk.length_bytes, chunk.base->deltas.front().length_bytes + all);
    }
    return std::min(before < all ? all - before : 0,
                    MaxDeltaBytes(chunk.length_bytes, changed_bytes));
  }

  /// Finds the pages that differ. Returns nothing if the chunk should not be tried.
  std::optional<Job> MakeJob(PlannedChunk& chunk) {
    if (!IsWorthEncoding(chunk) || chunk.is_unchanged() || chunk.base_page_digests.empty()) {
      return std::nullopt;
    }
    if (refused_tensor_ == chunk.tensor && ++untried_ % kDeltaTryInterval != 0) return std::nullopt;
    Job job{.chunk = &chunk, .fqn = std::string(plan_.tensors()[chunk.tensor].fqn)};
    uint64_t changed_bytes = 0;
    for (uint64_t page = 0; page < chunk.page_digests.size(); ++page) {
      if (chunk.page_digests[page] == chunk.base_page_digests[page]) continue;
      job.pages.push_back(page);
      changed_bytes += PageBytes(chunk, page);
    }
    job.bytes.resize(changed_bytes);
    return job;
  }

  void RunBatch(std::span<Job> jobs) {
    if (jobs.empty() || !ReadBase(jobs)) return;
    pool_.Run(jobs.size(), [&](size_t i, size_t worker) { EncodeChunk(jobs[i], worker); });
    for (const Job& job : jobs) {
      if (!job.chunk->delta.empty()) {
        refused_tensor_ = std::nullopt;
      } else if (refused_tensor_ != job.chunk->tensor) {
        refused_tensor_ = job.chunk->tensor;
        untried_ = 0;
      }
    }
  }

  /// Returns whether everything was read.
  bool ReadBase(std::span<Job> jobs) const {
    std::vector<kv::ReadRange> ranges;
    std::vector<DeltaRead> deltas;
    for (Job& job : jobs) {
      const ChunkInfo& base = *job.chunk->base;
      std::span<std::byte> rest(job.bytes);
      for (const uint64_t page : job.pages) {
        const kv::Extent at = base.extents.At(page * kv::kPageBytes);
        const uint64_t count = PageBytes(*job.chunk, page);
        ranges.push_back({.segment_id = at.segment_id,
                          .offset_bytes = at.offset_bytes,
                          .target = rest.first(count)});
        rest = rest.subspan(count);
      }
      if (base.deltas.empty()) continue;
      deltas.push_back({.fqn = &job.fqn, .chunk = &base, .chain = &job.chain});
    }
    if (!deltas.empty() && !ReadDeltas(base_, deltas)) return false;
    const uint32_t threads = kv::WorkerThreads();
    return base_.snapshot->Read(ranges, threads, [](size_t, auto) { return Result<void>(); })
        .has_value();
  }

  /// Compares the pages and sets `delta`, if it pays off.
  void EncodeChunk(Job& job, size_t worker) {
    PlannedChunk& chunk = *job.chunk;
    DeltaEncoder& encoder = encoders_[worker];
    const HostPayload payload = chunk.host_payload();
    const uint64_t max_bytes = MaxNextDeltaBytes(chunk, job.bytes.size());
    encoder.Begin(schema::ElementBytes(plan_.tensors()[chunk.tensor].dtype), chunk.length_bytes);
    std::span<std::byte> rest(job.bytes);
    uint64_t page = 0;
    for (const uint64_t changed : job.pages) {
      for (; page < changed; ++page) encoder.AddUnchangedPage();
      const std::span<std::byte> base = rest.first(PageBytes(chunk, page));
      rest = rest.subspan(base.size());
      // A delta relative to other bytes than the base's would be useless.
      if (!job.chain.Apply(page, base) || kv::PageDigest(base) != chunk.base_page_digests[page]) {
        return;
      }
      const auto bytes = payload.StablePage(page, scratch_[worker]);
      if (chunk.may_change && kv::PageDigest(bytes) != chunk.page_digests[page]) return;
      encoder.AddPage(base, bytes);
      if (encoder.is_too_long(max_bytes)) return;
      ++page;
    }
    for (; page < chunk.page_digests.size(); ++page) encoder.AddUnchangedPage();
    const auto delta = encoder.Finish(chunk.page_digests, max_bytes);
    if (!delta) return;
    chunk.delta.assign(delta->begin(), delta->end());
    chunk.delta_base = chunk.base->digest;
  }

  const SavePlan& plan_;
  const StepView& base_;
  kv::WorkerPool& pool_;
  const uint32_t max_deltas_;
  std::vector<DeltaEncoder> encoders_;           // one per worker
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  // The last tensor of which a chunk was tried in vain.
  std::optional<size_t> refused_tensor_;
  uint32_t untried_ = 0;
};

}  // namespace cairn::core::internal
