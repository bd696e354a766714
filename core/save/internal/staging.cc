#include "core/save/internal/staging.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/save/internal/base_cursor.h"
#include "core/save/internal/saved_chunks.h"
#include "core/tensor/strided_copy.h"
#include "kv/digest.h"
#include "kv/div.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kPageAlignment = 4096;
constexpr uint64_t kHugePageBytes = 2 << 20;
constexpr uint64_t kCopyBytes = 8 << 20;  // of one task

// Copies bytes [begin_bytes, begin_bytes + length_bytes) of a shard to `offset_bytes` of the area.
struct Task {
  PlannedShard* shard = nullptr;
  uint64_t begin_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t offset_bytes = 0;
  const kv::Digest* base =
      nullptr;         // not null: the task is one chunk, which is skipped if unchanged
  uint64_t chunk = 0;  // counted from the shard's first_chunk
};

void AddCopies(PlannedShard& shard, uint64_t begin, uint64_t end, uint64_t offset_bytes,
               std::vector<Task>& tasks) {
  for (uint64_t at = begin; at < end; at += kCopyBytes) {
    tasks.push_back({.shard = &shard,
                     .begin_bytes = at,
                     .length_bytes = std::min(kCopyBytes, end - at),
                     .offset_bytes = offset_bytes + (at - begin)});
  }
}

void AddTasks(PlannedShard& shard, uint64_t offset_bytes, const SavedChunks::Shard* base,
              std::vector<Task>& tasks) {
  if (base == nullptr || !IsContiguous(shard.source.shape, shard.source.strides)) {
    return AddCopies(shard, shard.begin_bytes(), shard.end_bytes(), offset_bytes, tasks);
  }
  shard.unchanged.resize(shard.chunk_count());
  for (uint64_t chunk = 0; chunk < shard.chunk_count(); ++chunk) {
    const uint64_t begin = shard.grid.offset_bytes(shard.first_chunk + chunk);
    const uint64_t length = shard.grid.length_bytes(shard.first_chunk + chunk);
    const uint64_t at = offset_bytes + (begin - shard.begin_bytes());
    if (!base->chunks[chunk].reused) {
      AddCopies(shard, begin, begin + length, at, tasks);
      continue;
    }
    tasks.push_back({.shard = &shard,
                     .begin_bytes = begin,
                     .length_bytes = length,
                     .offset_bytes = at,
                     .base = &base->chunks[chunk].digest,
                     .chunk = chunk});
  }
}

void RunTask(const Task& task, std::byte* area) {
  const TensorView& source = task.shard->source;
  const std::span<std::byte> target(area + task.offset_bytes, task.length_bytes);
  if (!IsContiguous(source.shape, source.strides)) {
    return GatherBytes(source, task.begin_bytes, target);
  }
  const std::span<const std::byte> bytes(source.data + task.begin_bytes, task.length_bytes);
  if (task.base != nullptr && kv::PayloadDigest(bytes) == *task.base) {
    task.shard->unchanged[task.chunk] = *task.base;
    return;
  }
  std::memcpy(target.data(), bytes.data(), bytes.size());
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
  const uint64_t rounded = RoundUp(bytes, kHugePageBytes);
  void* const memory =
      ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Fail(
        ErrorCode::kResourceExhausted,
        fmt::format("no memory for {} bytes of staging; save synchronously or free some", rounded));
  }
  // A hint that reduces page faults during the first copy; an error has no consequence.
  (void)::madvise(memory, rounded, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
  capacity_bytes_ = rounded;
  return {};
}

Result<void> StagingArea::Stage(SavePlan& plan, const SavedChunks* base) {
  std::vector<Task> tasks;
  std::vector<uint64_t> offsets_bytes;
  offsets_bytes.reserve(plan.shards.size());
  uint64_t total_bytes = 0;
  BaseCursor cursor(base);
  for (PlannedShard& shard : plan.shards) {
    if (shard.on_device()) {
      offsets_bytes.push_back(0);
      continue;
    }
    const uint64_t length = shard.end_bytes() - shard.begin_bytes();
    offsets_bytes.push_back(
        RoundUp(total_bytes, length >= kLargeShardBytes ? kPageAlignment : kLineBytes));
    total_bytes = offsets_bytes.back() + length;
    AddTasks(shard, offsets_bytes.back(), cursor.Find(plan.tensors[shard.tensor], shard), tasks);
  }
  CAIRN_TRY(Reserve(total_bytes));
  pool_.Run(tasks.size(), [&](size_t i, size_t) { RunTask(tasks[i], memory_); });
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    PlannedShard& shard = plan.shards[i];
    if (shard.on_device()) continue;
    shard.source.data = memory_ + offsets_bytes[i];
    shard.source.strides.clear();
    shard.skipped_bytes = shard.begin_bytes();
  }
  return {};
}

}  // namespace cairn::core::internal
