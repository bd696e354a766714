#include "core/save/internal/staging.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/internal/groups.h"
#include "core/save/internal/chunk_deltas.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/internal/tensor_payload.h"
#include "core/tensor/strided_copy.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/base/mapping.h"
#include "schema/dtype.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kPageAlignment = 4096;

// A shard that is being staged.
struct ShardTasks {
  uint32_t element_bytes = 1;
  uint32_t max_deltas = 0;
  std::atomic<bool> refused = false;  // a chunk was compared in vain
};

// Copies one chunk of a shard to `offset_bytes` of the area.
struct Task {
  TensorRef source;
  uint64_t begin_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t offset_bytes = 0;
  // Not null: the chunk may be unchanged or become a delta.
  const SavedChunks::Chunk* base = nullptr;
  size_t chunk = 0;             // index into PlanLayout::chunks
  size_t first_chunk = 0;       // of the shard
  ShardTasks* tasks = nullptr;  // null: only compares the chunk
};

bool MayHaveDelta(const Task& task) {
  const ShardTasks& tasks = *task.tasks;
  return task.base->deltas < tasks.max_deltas && task.length_bytes <= kMaxComparedBytes &&
         (!tasks.refused || (task.chunk - task.first_chunk) % kDeltaTryInterval == 0);
}

// Adds the tasks of a shard, one per chunk. `base`: its first chunk in the last save, or null.
void AddTasks(const SavePlan& plan, size_t index, uint64_t offset_bytes,
              const SavedChunks::Chunk* base, ShardTasks& shard_tasks, std::vector<Task>& tasks) {
  const PlannedShard& shard = plan.shards()[index];
  const TensorRef source = plan.SourceOf(index);
  if (!source.is_contiguous()) base = nullptr;
  for (size_t i = shard.first_chunk; i < shard.end_chunk; ++i) {
    const auto& [box, begin, length] = plan.layout->chunks[i];
    Task& task = tasks.emplace_back(Task{.source = source,
                                         .begin_bytes = begin,
                                         .length_bytes = length,
                                         .offset_bytes = offset_bytes + begin,
                                         .chunk = i,
                                         .first_chunk = shard.first_chunk,
                                         .tasks = &shard_tasks});
    if (base == nullptr) continue;
    const SavedChunks::Chunk& saved = base[i - shard.first_chunk];
    if (saved.reused || shard_tasks.max_deltas > 0) task.base = &saved;
  }
}

// Copies `bytes` to `staged`, which has the same length and contains an earlier version.
//
// If that version has the digest `base`, and a delta pays off, returns the delta and the page
// digests of `bytes`. Otherwise returns no delta, and the page digests unless it became clear
// early that no delta pays off. The result belongs to one value of each page, even if other
// threads write to `bytes`. Cost: reads both versions once, and digests and copies the pages that
// changed twice. `element_bytes` is the tensor's element size. Threads: any, each with its own
// `scratch`.
ChunkPages CopyAndEncode(std::span<const std::byte> bytes, std::span<std::byte> staged,
                         const kv::Digest& base, uint32_t element_bytes,
                         StagedDeltaScratch& scratch) {
  DeltaEncoder& encoder = scratch.encoder;
  ChunkPages pages;
  std::vector<uint64_t> base_page_digests;
  uint64_t changed_bytes = 0;
  encoder.Begin(element_bytes, bytes.size());
  for (uint64_t at = 0; at < bytes.size(); at += kv::kPageBytes) {
    const uint64_t count = std::min<uint64_t>(kv::kPageBytes, bytes.size() - at);
    const std::span<const std::byte> page = bytes.subspan(at, count);
    const std::span<std::byte> before = staged.subspan(at, count);
    base_page_digests.push_back(kv::PageDigest(before));
    if (std::memcmp(page.data(), before.data(), count) == 0) {
      pages.page_digests.push_back(base_page_digests.back());
      encoder.AddUnchangedPage();
      continue;
    }
    // Other threads may write to the tensor. Its delta and its digest must belong to one value.
    const std::span<std::byte> after = std::span(scratch.page).first(count);
    std::memcpy(after.data(), page.data(), count);
    pages.page_digests.push_back(kv::PageDigest(after));
    encoder.AddPage(before, after);
    changed_bytes += count;
    std::memcpy(before.data(), after.data(), count);
    if (!encoder.is_too_long(MaxDeltaBytes(bytes.size(), bytes.size()))) continue;
    std::memcpy(staged.data() + at + count, bytes.data() + at + count, bytes.size() - at - count);
    return {};
  }
  if (kv::RootDigest(base_page_digests, bytes.size()) != base) return pages;
  const auto delta = encoder.Finish(pages.page_digests, MaxDeltaBytes(bytes.size(), changed_bytes));
  if (!delta) return pages;
  pages.delta.assign(delta->begin(), delta->end());
  pages.delta_base = base;
  return pages;
}

void RunTask(const Task& task, std::byte* area, StagedDeltaScratch* scratch, SavePlan& plan) {
  if (task.tasks == nullptr) {
    const HostPayload payload(task.source, task.begin_bytes, task.length_bytes);
    if (payload.ComputeDigest() == task.base->digest)
      plan.unchanged[task.chunk] = task.base->digest;
    return;
  }
  const std::span<std::byte> target(area + task.offset_bytes, task.length_bytes);
  if (!task.source.is_contiguous()) {
    return GatherBytes(task.source.view(), task.begin_bytes, target);
  }
  const std::span<const std::byte> bytes(task.source.data + task.begin_bytes, task.length_bytes);
  if (task.base != nullptr && task.base->reused && kv::PayloadDigest(bytes) == task.base->digest) {
    plan.unchanged[task.chunk] = task.base->digest;
    return;
  }
  if (task.base != nullptr && MayHaveDelta(task)) {
    ChunkPages& pages = plan.pages[task.chunk];
    pages = CopyAndEncode(bytes, target, task.base->digest, task.tasks->element_bytes, *scratch);
    const bool is_changed = pages.page_digests.empty() ||
                            kv::RootDigest(pages.page_digests, bytes.size()) != task.base->digest;
    if (is_changed) task.tasks->refused = pages.delta.empty();
    return;
  }
  std::memcpy(target.data(), bytes.data(), bytes.size());
}

// A shard that is not copied. `base`: its first chunk in the last save. Adds the chunk that is
// compared as a task.
void TakeFromBase(SavePlan& plan, size_t index, const SavedChunks::Chunk* base,
                  std::vector<Task>& tasks) {
  const PlannedShard& shard = plan.shards()[index];
  for (size_t i = shard.first_chunk; i < shard.end_chunk; ++i, ++base) {
    if (i != plan.compared_chunk) {
      plan.unchanged[i] = base->digest;
      continue;
    }
    const ShardChunk& chunk = plan.layout->chunks[i];
    tasks.push_back({.source = plan.SourceOf(index),
                     .begin_bytes = chunk.begin_bytes,
                     .length_bytes = chunk.length_bytes,
                     .base = base,
                     .chunk = i});
  }
}

// Where each shard in host memory is in the area, and the length of the area. Long values are last:
// if their lengths change, the tensors stay where they are.
std::pair<std::vector<uint64_t>, uint64_t> LayOut(const PlanLayout& layout) {
  std::vector<uint64_t> offsets_bytes(layout.shards.size());
  uint64_t total_bytes = 0;
  for (const bool of_values : {false, true}) {
    for (size_t i = 0; i < layout.shards.size(); ++i) {
      const PlannedShard& shard = layout.shards[i];
      if (shard.on_device() || shard.value_slot.has_value() != of_values) continue;
      const uint64_t length = layout.LengthOf(shard);
      offsets_bytes[i] =
          RoundUp(total_bytes, length >= kLargeShardBytes ? kPageAlignment : kLineBytes);
      total_bytes = offsets_bytes[i] + length;
    }
  }
  return {std::move(offsets_bytes), total_bytes};
}

}  // namespace

StagingArea::~StagingArea() {
  if (memory_ != nullptr) ::munmap(memory_, capacity_bytes_);
}

Result<void> StagingArea::Reserve(uint64_t bytes) {
  if (bytes <= capacity_bytes_) return {};
  // The old region is released first: there may not be enough memory for both.
  if (memory_ != nullptr) ::munmap(memory_, capacity_bytes_);
  memory_ = nullptr;
  capacity_bytes_ = 0;
  const uint64_t rounded = RoundUp(bytes, kv::kHugePageBytes);
  memory_ = kv::MapAligned(rounded, kv::kHugePageBytes);
  if (memory_ == nullptr) {
    return Fail(
        ErrorCode::kResourceExhausted,
        fmt::format("no memory for {} bytes of staging; save synchronously or free some", rounded));
  }
  // A hint that reduces page faults during the first copy; an error has no consequence.
  (void)::madvise(memory_, rounded, MADV_HUGEPAGE);
  capacity_bytes_ = rounded;
  return {};
}

Result<void> StagingArea::Stage(SavePlan& plan, const SavedChunks* base,
                                const SaveOptions& options) {
  const PlanLayout& layout = *plan.layout;
  const auto [offsets_bytes, total_bytes] = LayOut(layout);
  std::vector<uint64_t> of_tensors;
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    if (!layout.shards[i].value_slot) of_tensors.push_back(offsets_bytes[i]);
  }
  // In another layout, a shard would be overwritten before it is compared. Long values that have
  // moved are compared in vain.
  plan.has_deltas = options.max_deltas > 0 && base != nullptr &&
                    of_tensors == tensor_offsets_bytes_ && total_bytes <= capacity_bytes_;
  if (plan.has_deltas && scratch_.empty()) scratch_.resize(pool_.thread_count());
  tensor_offsets_bytes_.clear();
  CAIRN_TRY(Reserve(total_bytes));
  if (base != nullptr) plan.unchanged.resize(layout.chunks.size());
  if (plan.has_deltas) plan.pages.resize(layout.chunks.size());
  std::vector<Task> tasks;
  std::optional<uint32_t> compared;  // the tensor of the chunk that is only compared
  std::deque<ShardTasks> shard_tasks;
  BaseCursor cursor(base, layout);
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    const PlannedShard& shard = layout.shards[i];
    if (shard.on_device()) continue;
    const PlannedShard* const found = cursor.Find(i);
    const SavedChunks::Chunk* const first =
        found != nullptr ? &base->chunks[found->first_chunk] : nullptr;
    if (plan.sources[i].is_stated_unchanged && found != nullptr) {
      const size_t known = tasks.size();
      TakeFromBase(plan, i, first, tasks);
      if (tasks.size() > known) compared = shard.tensor;
      continue;
    }
    ShardTasks& of_shard = shard_tasks.emplace_back();
    of_shard.element_bytes = schema::ElementBytes(layout.tensors[shard.tensor].dtype);
    of_shard.max_deltas = plan.has_deltas ? options.max_deltas : 0;
    AddTasks(plan, i, offsets_bytes[i], first, of_shard, tasks);
  }
  if (options.hold_memory) {
    std::vector<const std::byte*> addresses;
    for (const Task& task : tasks) addresses.push_back(task.source.data);
    CAIRN_TRY(options.hold_memory(addresses));
  }
  const auto groups =
      GroupByBytes(std::span(tasks), [](const Task& task) { return task.length_bytes; });
  pool_.Run(groups.size(), [&](size_t i, size_t worker) {
    for (const Task& task : groups[i]) {
      RunTask(task, memory_, plan.has_deltas ? &scratch_[worker] : nullptr, plan);
    }
  });
  if (compared && !plan.unchanged[*plan.compared_chunk]) {
    return Fail(NotUnchangedError(layout.tensors[*compared].fqn));
  }
  tensor_offsets_bytes_ = std::move(of_tensors);
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    if (layout.shards[i].on_device()) continue;
    ShardSource& source = plan.sources[i];
    source.data = memory_ + offsets_bytes[i];
    source.is_copy = true;
    source.is_stable = true;
  }
  return {};
}

}  // namespace cairn::core::internal
