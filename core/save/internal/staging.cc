// Staging: what the rank writes of every distinct tensor is copied once, row-major; aliases are the
// plan's business.

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
constexpr uint64_t kCopyBytes = 8 << 20;  // one piece of work for one thread

// Payload [begin, begin + length) of a piece goes to `offset_bytes` of the area.
struct Task {
  PlannedShard* piece = nullptr;
  uint64_t begin_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t offset_bytes = 0;
  const kv::Digest* base = nullptr;  // if set, the task is `chunk`, and perhaps has not changed
  uint64_t chunk = 0;                // from the piece's first on
};

void AddCopies(PlannedShard& piece, uint64_t begin, uint64_t end, uint64_t offset_bytes,
               std::vector<Task>& tasks) {
  for (uint64_t at = begin; at < end; at += kCopyBytes) {
    tasks.push_back({.piece = &piece,
                     .begin_bytes = at,
                     .length_bytes = std::min(kCopyBytes, end - at),
                     .offset_bytes = offset_bytes + (at - begin)});
  }
}

void AddTasks(PlannedShard& piece, uint64_t offset_bytes, const SavedChunks::Piece* base,
              std::vector<Task>& tasks) {
  if (base == nullptr || !IsContiguous(piece.source.shape, piece.source.strides)) {
    return AddCopies(piece, piece.begin_bytes(), piece.end_bytes(), offset_bytes, tasks);
  }
  piece.unchanged.resize(piece.chunk_count());
  for (uint64_t chunk = 0; chunk < piece.chunk_count(); ++chunk) {
    const uint64_t begin = piece.grid.offset_bytes(piece.first_chunk + chunk);
    const uint64_t length = piece.grid.length_bytes(piece.first_chunk + chunk);
    const uint64_t at = offset_bytes + (begin - piece.begin_bytes());
    if (!base->chunks[chunk].reused) {
      AddCopies(piece, begin, begin + length, at, tasks);
      continue;
    }
    tasks.push_back({.piece = &piece,
                     .begin_bytes = begin,
                     .length_bytes = length,
                     .offset_bytes = at,
                     .base = &base->chunks[chunk].digest,
                     .chunk = chunk});
  }
}

void RunTask(const Task& task, std::byte* area) {
  const TensorView& source = task.piece->source;
  const std::span<std::byte> target(area + task.offset_bytes, task.length_bytes);
  if (!IsContiguous(source.shape, source.strides)) {
    return GatherBytes(source, task.begin_bytes, target);
  }
  const std::span<const std::byte> bytes(source.data + task.begin_bytes, task.length_bytes);
  if (task.base != nullptr && kv::PayloadDigest(bytes) == *task.base) {
    task.piece->unchanged[task.chunk] = *task.base;
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
  // The old region goes first: both at once could be more memory than there is.
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
  // Only a hint: fewer page faults during the first copy.
  (void)::madvise(memory, rounded, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
  capacity_bytes_ = rounded;
  return {};
}

Result<void> StagingArea::Stage(SavePlan& plan, const SavedChunks* base) {
  std::vector<Task> tasks;
  std::vector<uint64_t> offsets_bytes;
  offsets_bytes.reserve(plan.pieces.size());
  uint64_t total_bytes = 0;
  BaseCursor cursor(base);
  for (PlannedShard& piece : plan.pieces) {
    if (piece.on_device()) {
      offsets_bytes.push_back(0);
      continue;
    }
    const uint64_t length = piece.end_bytes() - piece.begin_bytes();
    offsets_bytes.push_back(
        RoundUp(total_bytes, length >= kLargePieceBytes ? kPageAlignment : kLineBytes));
    total_bytes = offsets_bytes.back() + length;
    AddTasks(piece, offsets_bytes.back(), cursor.Find(plan.tensors[piece.tensor], piece), tasks);
  }
  CAIRN_TRY(Reserve(total_bytes));
  pool_.Run(tasks.size(), [&](size_t i, size_t) { RunTask(tasks[i], memory_); });
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    PlannedShard& piece = plan.pieces[i];
    if (piece.on_device()) continue;
    piece.source.data = memory_ + offsets_bytes[i];
    piece.source.strides.clear();
    piece.skipped_bytes = piece.begin_bytes();
  }
  return {};
}

}  // namespace cairn::core::internal
