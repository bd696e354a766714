#include "core/load/internal/read_boxes.h"

#include <memory>
#include <vector>

#include "core/tensor/chunk_grid.h"
#include "kv/base/div.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kMemoryBytes = 32 << 20;
constexpr size_t kMaxBoxes = 4096;
// Boxes begin on cache lines, so that their elements are aligned for computations.
constexpr uint64_t kAlignBytes = 64;

}  // namespace

Result<uint64_t> ReadBoxes(std::span<const BoxLoad> loads, std::span<const TensorInfo> tensors,
                           uint64_t box_bytes, const BoxesCallback& on_boxes) {
  const uint64_t window_bytes = kMemoryBytes / loads.size();
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(kMemoryBytes);
  std::vector<LoadRequest> requests;  // those of the first load
  std::vector<LoadedBox> boxes;
  uint64_t used_bytes = 0, read_bytes = 0;
  const auto flush = [&]() -> Result<void> {
    if (boxes.empty()) return {};
    for (size_t i = 0; i < loads.size(); ++i) {
      for (size_t k = 0; i > 0 && k < requests.size(); ++k) requests[k].target.data += window_bytes;
      CAIRN_TRY_ASSIGN(const LoadReport report, loads[i](requests));
      read_bytes += report.bytes_read;
    }
    CAIRN_TRY(on_boxes(boxes));
    requests.clear();
    boxes.clear();
    used_bytes = 0;
    return {};
  };
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorInfo& tensor = tensors[t];
    CAIRN_TRY_ASSIGN(const auto grid, ChunkGrid::Make(tensor.dtype, tensor.shape, box_bytes));
    for (uint64_t i = 0; i < grid.chunk_count(); ++i) {
      const uint64_t length = grid.length_bytes(i);
      if (used_bytes + length > window_bytes || boxes.size() == kMaxBoxes) CAIRN_TRY(flush());
      std::byte* const target = memory.get() + used_bytes;
      requests.push_back(RowMajorRequest(tensor.fqn, tensor.dtype, grid.chunk(i), target));
      LoadedBox& box = boxes.emplace_back(t, grid.offset_bytes(i));
      for (size_t k = 0; k < loads.size(); ++k) box.bytes[k] = {target + k * window_bytes, length};
      used_bytes = RoundUp(used_bytes + length, kAlignBytes);
    }
  }
  CAIRN_TRY(flush());
  return read_bytes;
}

}  // namespace cairn::core::internal
