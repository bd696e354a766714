// Staging: every distinct tensor is copied once, row-major; aliases are the plan's business.

#include "core/internal/staging.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/strided_copy.h"
#include "kv/digest.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kPageAlignment = 4096;
constexpr uint64_t kHugePageBytes = 2 << 20;
constexpr uint64_t kCopyBytes = 8 << 20;  // one piece of work for one thread

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Payload [begin, begin + length) of a tensor goes to `offset_bytes` of the area.
struct Task {
  PlannedTensor* tensor = nullptr;
  uint64_t begin_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t offset_bytes = 0;
  const kv::Digest* base = nullptr;  // if set, the task is `chunk`, and perhaps has not changed
  uint64_t chunk = 0;
};

void AddCopies(PlannedTensor& tensor, uint64_t begin, uint64_t end, uint64_t offset_bytes,
               std::vector<Task>& tasks) {
  for (uint64_t at = begin; at < end; at += kCopyBytes) {
    tasks.push_back({.tensor = &tensor,
                     .begin_bytes = at,
                     .length_bytes = std::min(kCopyBytes, end - at),
                     .offset_bytes = offset_bytes + at});
  }
}

// Looks tensors up that come in key order, as `base` has them.
class BaseCursor {
 public:
  explicit BaseCursor(const SavedChunks* base) : base_(base) {}

  /// The chunks of the same tensor on the same grid, or null.
  const std::vector<SavedChunks::Chunk>* Find(const TensorInfo& tensor) {
    if (base_ == nullptr) return nullptr;
    while (next_ < base_->tensors.size() && base_->tensors[next_].fqn < tensor.fqn) ++next_;
    if (next_ == base_->tensors.size()) return nullptr;
    const SavedChunks::Tensor& found = base_->tensors[next_];
    const bool same = found.fqn == tensor.fqn && found.dtype == tensor.dtype &&
                      found.shape == tensor.shape && found.chunks.size() == tensor.chunk_count;
    return same ? &found.chunks : nullptr;
  }

 private:
  const SavedChunks* base_;
  size_t next_ = 0;
};

void AddTasks(PlannedTensor& tensor, const ChunkGrid& grid, uint64_t offset_bytes,
              const std::vector<SavedChunks::Chunk>* base, std::vector<Task>& tasks) {
  if (base == nullptr || !IsContiguous(tensor.source.shape, tensor.source.strides)) {
    return AddCopies(tensor, 0, tensor.info.nbytes, offset_bytes, tasks);
  }
  tensor.unchanged.resize(grid.chunk_count());
  for (uint64_t chunk = 0; chunk < grid.chunk_count(); ++chunk) {
    const uint64_t begin = grid.offset_bytes(chunk);
    const uint64_t length = grid.length_bytes(chunk);
    if (!(*base)[chunk].reused) {
      AddCopies(tensor, begin, begin + length, offset_bytes, tasks);
      continue;
    }
    tasks.push_back({.tensor = &tensor,
                     .begin_bytes = begin,
                     .length_bytes = length,
                     .offset_bytes = offset_bytes + begin,
                     .base = &(*base)[chunk].digest,
                     .chunk = chunk});
  }
}

void RunTask(const Task& task, std::byte* area) {
  const TensorView& source = task.tensor->source;
  const std::span<std::byte> target(area + task.offset_bytes, task.length_bytes);
  if (!IsContiguous(source.shape, source.strides)) {
    return GatherBytes(source, task.begin_bytes, target);
  }
  const std::span<const std::byte> bytes(source.data + task.begin_bytes, task.length_bytes);
  if (task.base != nullptr && kv::PayloadDigest(bytes) == *task.base) {
    task.tensor->unchanged[task.chunk] = *task.base;
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
  std::vector<uint64_t> offsets_bytes(plan.tensors.size());
  uint64_t total_bytes = 0;
  BaseCursor cursor(base);
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    PlannedTensor& tensor = plan.tensors[i];
    if (tensor.info.alias_of || tensor.info.nbytes == 0) continue;
    const uint64_t length = tensor.info.nbytes;
    offsets_bytes[i] =
        RoundUp(total_bytes, length >= kLargeTensorBytes ? kPageAlignment : kLineBytes);
    total_bytes = offsets_bytes[i] + length;
    AddTasks(tensor, plan.grids[i], offsets_bytes[i], cursor.Find(tensor.info), tasks);
  }
  CAIRN_TRY(Reserve(total_bytes));
  pool_.Run(tasks.size(), [&](size_t i, size_t) { RunTask(tasks[i], memory_); });
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    TensorView& source = plan.tensors[i].source;
    if (plan.tensors[i].info.alias_of || plan.tensors[i].info.nbytes == 0) continue;
    source.data = memory_ + offsets_bytes[i];
    source.strides.clear();
  }
  return {};
}

}  // namespace cairn::core::internal
