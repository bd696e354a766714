// Staging: every distinct span of memory is copied once.

#include "core/internal/staging.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/strided_copy.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kPageAlignment = 4096;
constexpr uint64_t kHugePageBytes = 2 << 20;
constexpr uint64_t kCopyBytes = 8 << 20;  // one piece of work for one thread

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Bytes [begin, begin + length) of what is copied to `offset_bytes` of the area.
struct CopyTask {
  const std::byte* memory = nullptr;   // plain copy, or
  const TensorView* gather = nullptr;  // the row-major bytes of this tensor
  uint64_t begin_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t offset_bytes = 0;
};

void AddTasks(CopyTask whole, std::vector<CopyTask>& tasks) {
  for (uint64_t at = 0; at < whole.length_bytes; at += kCopyBytes) {
    CopyTask task = whole;
    task.begin_bytes = at;
    task.length_bytes = std::min(kCopyBytes, whole.length_bytes - at);
    task.offset_bytes = whole.offset_bytes + at;
    tasks.push_back(task);
  }
}

// Where everything goes: tasks, and for each tensor its offset in the area.
struct Layout {
  std::vector<CopyTask> tasks;
  std::vector<uint64_t> offsets_bytes;
  std::vector<bool> gathered;  // becomes row-major
  uint64_t total_bytes = 0;
};

Layout Arrange(const StateDict& state, std::span<const MemorySpan> spans) {
  Layout layout;
  layout.offsets_bytes.resize(state.tensors.size());
  layout.gathered.resize(state.tensors.size());
  for (const std::vector<size_t>& group : OverlapGroups(spans)) {
    MemorySpan all = spans[group.front()];
    for (const size_t i : group) all.end = std::max(all.end, spans[i].end);
    uint64_t length = all.end - all.begin;
    const TensorView& first = state.tensors[group.front()];
    // A lone tensor with wide gaps (a column) takes less memory without them. Its size is known to
    // be fine: its span was computed.
    const uint64_t dense = TensorBytes(first.dtype, first.shape).value_or(length);
    const bool gather = group.size() == 1 && dense < length;
    if (gather) length = dense;
    const uint64_t at =
        RoundUp(layout.total_bytes, length >= kCopyBytes ? kPageAlignment : kLineBytes);
    AddTasks({.memory = reinterpret_cast<const std::byte*>(all.begin),
              .gather = gather ? &first : nullptr,
              .length_bytes = length,
              .offset_bytes = at},
             layout.tasks);
    for (const size_t i : group) {
      layout.offsets_bytes[i] = at + (spans[i].begin - all.begin);
      layout.gathered[i] = gather;
    }
    layout.total_bytes = at + length;
  }
  return layout;
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

Result<StateDict> StagingArea::Copy(const StateDict& state) {
  std::vector<MemorySpan> spans;
  spans.reserve(state.tensors.size());
  for (const TensorView& tensor : state.tensors) {
    CAIRN_TRY_ASSIGN(const MemorySpan span, SpanOf(tensor));
    spans.push_back(span);
  }
  const Layout layout = Arrange(state, spans);
  CAIRN_TRY(Reserve(layout.total_bytes));
  pool_.Run(layout.tasks.size(), [&](size_t i, size_t) {
    const CopyTask& task = layout.tasks[i];
    const std::span<std::byte> target(memory_ + task.offset_bytes, task.length_bytes);
    if (task.gather != nullptr) {
      GatherBytes(*task.gather, task.begin_bytes, target);
    } else {
      std::memcpy(target.data(), task.memory + task.begin_bytes, target.size());
    }
  });
  StateDict staged = state;
  for (size_t i = 0; i < staged.tensors.size(); ++i) {
    TensorView& tensor = staged.tensors[i];
    tensor.data = spans[i].begin == spans[i].end ? nullptr : memory_ + layout.offsets_bytes[i];
    if (layout.gathered[i]) tensor.strides.clear();
  }
  return staged;
}

}  // namespace cairn::core::internal
