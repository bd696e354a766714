#include "core/save/internal/device_deltas.h"

#include <algorithm>
#include <utility>

#include "core/delta/internal/delta_format.h"
#include "core/save/internal/base_cursor.h"
#include "core/save/internal/delta_limits.h"
#include "kv/digest.h"
#include "schema/dtype.h"

namespace cairn::core::internal {
namespace {

// Shorter tensors have no copy, which would save less than it costs to allocate it.
constexpr uint64_t kMinCopyBytes = kv::kPageBytes;
// The copies leave at least this much device memory free for the training.
constexpr uint64_t kSpareBytes = 512 << 20;
// A tensor whose deltas did not pay off has no copy in this number of saves.
constexpr uint8_t kSavesWithoutCopy = 16;
// About what an element takes in a delta: a gap and a small value.
constexpr double kEstimatedElementBytes = 1.25;

uint64_t LengthBytes(const PlannedShard& shard) { return shard.end_bytes() - shard.begin_bytes(); }

// Where a chunk of the shard begins in its copy.
uint64_t OffsetInCopy(const PlannedShard& shard, uint64_t chunk) {
  return shard.grid.offset_bytes(shard.first_chunk + chunk) - shard.begin_bytes();
}

uint64_t ChunkBytes(const PlannedShard& shard, uint64_t chunk) {
  return shard.grid.length_bytes(shard.first_chunk + chunk);
}

}  // namespace

DeviceDeltas::DeviceDeltas(const DeviceDeltaContext& context)
    : context_(context), pool_(WorkerPool::DefaultThreadCount()), encoders_(pool_.thread_count()) {}

Result<void> DeviceDeltas::Run() {
  FindCandidates();
  const Result<void> found = Find();
  if (found) {
    UseCopies();
    return {};
  }
  for (const Candidate& candidate : candidates_) Drop(*candidate.shard);
  if (found.error().code == ErrorCode::kResourceExhausted) return {};  // a save without deltas
  return found;
}

Result<void> DeviceDeltas::Find() {
  CAIRN_TRY(ChooseCopies());
  for (Candidate& candidate : candidates_) {
    if (candidate.shard->device_copy != nullptr) CAIRN_TRY(UpdateCopy(candidate));
  }
  CAIRN_TRY(RunBatch());
  return VerifyCopies();
}

void DeviceDeltas::FindCandidates() {
  BaseCursor cursor(context_.base);
  for (PlannedShard& shard : context_.plan.shards) {
    const SavedChunks::Shard* const found = cursor.Find(context_.plan.tensors[shard.tensor], shard);
    if (shard.source.device != context_.queue.device()) continue;
    const bool is_possible = IsContiguous(shard.source.shape, shard.source.strides) &&
                             LengthBytes(shard) >= kMinCopyBytes &&
                             ChunkBytes(shard, 0) <= kMaxComparedBytes;
    if (!is_possible) continue;
    Candidate candidate{.shard = &shard};
    if (found != nullptr && found->device == shard.source.device) {
      auto& shards = context_.base->shards;
      candidate.base = &shards[static_cast<size_t>(found - shards.data())];
    }
    candidate.is_changed =
        std::ranges::any_of(shard.unchanged, [](const auto& digest) { return !digest; });
    candidates_.push_back(candidate);
  }
}

Result<void> DeviceDeltas::ChooseCopies() {
  uint64_t kept_bytes = 0;
  uint64_t wanted_bytes = 0;
  for (Candidate& candidate : candidates_) {
    PlannedShard& shard = *candidate.shard;
    if (candidate.base != nullptr) {
      shard.device_copy = std::exchange(candidate.base->device_copy, nullptr);
      shard.saves_without_copy = candidate.base->saves_without_copy;
    }
    if (shard.device_copy != nullptr) {
      memory_.push_back(shard.device_copy);
      kept_bytes += LengthBytes(shard);
    } else if (candidate.is_changed && shard.saves_without_copy == 0) {
      wanted_bytes += LengthBytes(shard);
    }
  }
  // Tensors that are frozen do not need their copies.
  for (Candidate& candidate : candidates_) {
    if (kept_bytes + wanted_bytes <= context_.budget_bytes) break;
    if (candidate.is_changed || candidate.shard->device_copy == nullptr) continue;
    kept_bytes -= LengthBytes(*candidate.shard);
    candidate.shard->device_copy = nullptr;
  }
  // Only if the budget is smaller than in the last save.
  for (Candidate& candidate : candidates_) {
    if (kept_bytes <= context_.budget_bytes) break;
    if (candidate.shard->device_copy == nullptr) continue;
    kept_bytes -= LengthBytes(*candidate.shard);
    candidate.shard->device_copy = nullptr;
  }
  return AllocateCopies(kept_bytes);
}

Result<void> DeviceDeltas::AllocateCopies(uint64_t kept_bytes) {
  CAIRN_TRY_ASSIGN(const uint64_t free_bytes, context_.backend.FreeBytes(context_.queue.device()));
  uint64_t room_bytes = free_bytes > kSpareBytes ? free_bytes - kSpareBytes : 0;
  room_bytes = std::min(room_bytes, context_.budget_bytes - kept_bytes);
  for (Candidate& candidate : candidates_) {
    PlannedShard& shard = *candidate.shard;
    if (shard.device_copy != nullptr || !candidate.is_changed) continue;
    if (shard.saves_without_copy > 0) {
      --shard.saves_without_copy;
      continue;
    }
    if (LengthBytes(shard) > room_bytes) continue;
    auto memory = context_.backend.Allocate(context_.queue.device(), LengthBytes(shard));
    if (!memory && memory.error().code == ErrorCode::kResourceExhausted) return {};
    CAIRN_TRY(memory);
    room_bytes -= LengthBytes(shard);
    shard.device_copy = *std::move(memory);
    memory_.push_back(shard.device_copy);
    candidate.is_new = true;
  }
  return {};
}

Result<void> DeviceDeltas::UpdateCopy(Candidate& candidate) {
  PlannedShard& shard = *candidate.shard;
  const uint64_t begin = shard.begin_bytes() - shard.skipped_bytes;  // in the source
  if (candidate.is_new) {
    return context_.queue.Pack(shard.source, begin, LengthBytes(shard), shard.device_copy->data());
  }
  for (uint64_t chunk = 0; chunk < shard.chunk_count(); ++chunk) {
    if (shard.unchanged[chunk]) continue;
    const bool is_comparable = !shard.pages[chunk].changed.empty() &&
                               candidate.base->chunks[chunk].deltas < context_.max_deltas;
    if (is_comparable) {
      CAIRN_TRY(Compare(candidate, chunk));
      continue;
    }
    const uint64_t offset = OffsetInCopy(shard, chunk);
    CAIRN_TRY(context_.queue.Pack(shard.source, begin + offset, ChunkBytes(shard, chunk),
                                  shard.device_copy->data() + offset));
  }
  return {};
}

Result<void> DeviceDeltas::Compare(Candidate& candidate, uint64_t chunk) {
  PlannedShard& shard = *candidate.shard;
  const std::vector<bool>& changed = shard.pages[chunk].changed;
  const uint64_t chunk_bytes = ChunkBytes(shard, chunk);
  const uint32_t element_bytes = DeltaElementBytes(
      schema::ElementBytes(context_.plan.tensors[shard.tensor].dtype), chunk_bytes);
  Job job{.candidate = &candidate, .chunk = chunk};
  for (size_t page = 0; page < changed.size(); ++page) {
    if (changed[page]) job.pages.push_back(page);
  }
  if (comparisons_.size() + job.pages.size() > DeviceQueue::kMaxComparedPages) {
    CAIRN_TRY(RunBatch());
  }
  job.first = static_cast<uint32_t>(comparisons_.size());
  const uint64_t in_copy = OffsetInCopy(shard, chunk);
  const uint64_t in_source = in_copy + shard.begin_bytes() - shard.skipped_bytes;
  for (const size_t page : job.pages) {
    const uint64_t at = page * kv::kPageBytes;
    comparisons_.push_back(
        {.page = shard.source.data + in_source + at,
         .base = shard.device_copy->data() + in_copy + at,
         .length_bytes = static_cast<uint32_t>(DeltaPageLength(page, chunk_bytes)),
         .element_bytes = element_bytes});
  }
  ++candidate.tried;
  jobs_.push_back(std::move(job));
  return {};
}

Result<void> DeviceDeltas::RunBatch() {
  if (jobs_.empty()) return {};
  CAIRN_TRY_ASSIGN(const std::vector<uint32_t> counts, context_.queue.ListChanges(comparisons_));
  std::vector<uint32_t> wanted;
  size_t bytes = 0;
  for (Job& job : jobs_) {
    job.is_worth = IsWorthFetching(job, counts);
    if (!job.is_worth) continue;
    job.list_offset = bytes;
    for (uint32_t i = job.first; i < job.first + job.pages.size(); ++i) {
      wanted.push_back(i);
      const PageComparison& compared = comparisons_[i];
      bytes += counts[i] == kMostlyChanged
                   ? compared.length_bytes
                   : size_t{counts[i]} * (sizeof(uint16_t) + compared.element_bytes);
    }
  }
  CAIRN_TRY_ASSIGN(const std::span<const std::byte> lists, context_.queue.FetchChanges(wanted));
  CAIRN_CHECK(lists.size() == bytes);
  fetched_bytes_ += bytes;
  pool_.Run(jobs_.size(), [&](size_t i, size_t worker) {
    if (jobs_[i].is_worth) Encode(jobs_[i], counts, lists, encoders_[worker]);
  });
  for (const Job& job : jobs_) {
    job.candidate->encoded += !job.candidate->shard->pages[job.chunk].delta.empty();
  }
  jobs_.clear();
  comparisons_.clear();
  return {};
}

bool DeviceDeltas::IsWorthFetching(const Job& job, std::span<const uint32_t> counts) const {
  double bytes = 0;
  uint64_t changed_bytes = 0;
  for (uint32_t i = job.first; i < job.first + job.pages.size(); ++i) {
    const uint32_t length_bytes = comparisons_[i].length_bytes;
    bytes += counts[i] == kMostlyChanged ? length_bytes : counts[i] * kEstimatedElementBytes;
    changed_bytes += length_bytes;
  }
  const uint64_t chunk_bytes = ChunkBytes(*job.candidate->shard, job.chunk);
  return bytes <= static_cast<double>(MaxDeltaBytes(chunk_bytes, changed_bytes));
}

void DeviceDeltas::Encode(const Job& job, std::span<const uint32_t> counts,
                          std::span<const std::byte> lists, DeltaEncoder& encoder) const {
  PlannedShard& shard = *job.candidate->shard;
  PlannedShard::ChunkPages& pages = shard.pages[job.chunk];
  const uint64_t chunk_bytes = ChunkBytes(shard, job.chunk);
  encoder.Begin(schema::ElementBytes(context_.plan.tensors[shard.tensor].dtype), chunk_bytes);
  std::span<const std::byte> rest = lists.subspan(job.list_offset);
  const auto take = [&](size_t length_bytes) {
    const auto taken = rest.first(length_bytes);
    rest = rest.subspan(length_bytes);
    return taken;
  };
  uint64_t changed_bytes = 0;
  size_t next = 0;  // in job.pages
  for (size_t page = 0; page < pages.changed.size(); ++page) {
    const bool is_listed = next < job.pages.size() && job.pages[next] == page;
    const uint32_t index = job.first + static_cast<uint32_t>(next);
    if (!is_listed || counts[index] == 0) {
      encoder.AddUnchangedPage();
    } else if (counts[index] == kMostlyChanged) {
      encoder.AddRawPage(take(comparisons_[index].length_bytes));
    } else {
      const auto positions = take(counts[index] * sizeof(uint16_t));
      encoder.AddElements(counts[index], positions,
                          take(size_t{counts[index]} * encoder.element_bytes()));
    }
    if (!is_listed) continue;
    changed_bytes += comparisons_[index].length_bytes;
    ++next;
  }
  const auto delta = encoder.Finish(pages.page_digests, MaxDeltaBytes(chunk_bytes, changed_bytes));
  if (!delta) return;
  pages.delta.assign(delta->begin(), delta->end());
  pages.delta_base = job.candidate->base->chunks[job.chunk].digest;
}

Result<void> DeviceDeltas::VerifyCopies() {
  std::vector<DigestJob> jobs;
  std::vector<Candidate*> owners;  // of each job
  for (Candidate& candidate : candidates_) {
    const PlannedShard& shard = *candidate.shard;
    if (shard.device_copy == nullptr) continue;
    uint64_t page = shard.first_page_digest;
    for (uint64_t chunk = 0; chunk < shard.chunk_count(); ++chunk) {
      const uint64_t length_bytes = ChunkBytes(shard, chunk);
      const uint64_t first_page = std::exchange(page, page + kv::PageCount(length_bytes));
      if (shard.unchanged[chunk] && !candidate.is_new) continue;
      jobs.push_back({.source = {.dtype = DType::kUInt8,
                                 .shape = {length_bytes},
                                 .data = shard.device_copy->data() + OffsetInCopy(shard, chunk),
                                 .device = shard.source.device},
                      .length_bytes = length_bytes,
                      .base_page = first_page});
      owners.push_back(&candidate);
    }
  }
  if (jobs.empty()) return {};
  CAIRN_TRY_ASSIGN(const DeviceQueue::Digests digests,
                   context_.queue.Digest(jobs, &context_.page_digests));
  uint64_t page = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const uint64_t end = page + kv::PageCount(jobs[i].length_bytes);
    for (; page < end; ++page) owners[i]->is_wrong |= digests.IsChanged(page);
  }
  return {};
}

void DeviceDeltas::Drop(PlannedShard& shard) {
  for (PlannedShard::ChunkPages& pages : shard.pages) pages.delta.clear();
  shard.device_copy = nullptr;
}

void DeviceDeltas::UseCopies() {
  for (Candidate& candidate : candidates_) {
    PlannedShard& shard = *candidate.shard;
    if (shard.device_copy == nullptr) continue;
    if (candidate.is_wrong) {
      Drop(shard);  // the tensor was changed while it was being saved
      continue;
    }
    shard.has_stable_source = true;
    shard.source.data = shard.device_copy->data();
    shard.source.strides.clear();
    shard.skipped_bytes = shard.begin_bytes();
    if (candidate.tried == 0 || candidate.encoded > 0) continue;
    // The writer still reads the copy, but the next save has none.
    shard.saves_without_copy = kSavesWithoutCopy;
    shard.device_copy = nullptr;
  }
}

}  // namespace cairn::core::internal
