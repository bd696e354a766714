// Reads windows of boxes on the default chunk grid, which are usually the chunks that are stored.

#include "core/upkeep/payload_reader.h"

#include <memory>

#include "core/step/contents.h"

namespace cairn::core {
namespace {

constexpr uint64_t kWindowBytes = 32 << 20;
constexpr size_t kWindowBoxes = 4096;
// Boxes begin on cache lines, so that their elements are aligned for computations.
constexpr uint64_t kAlignBytes = 64;

// Boxes that are loaded together, then passed to the callback in order.
class Window {
 public:
  Window(const RequestLoader& load, const PayloadCallback& on_bytes)
      : load_(load),
        on_bytes_(on_bytes),
        memory_(std::make_unique_for_overwrite<std::byte[]>(kWindowBytes)) {}

  Result<void> Add(size_t tensor, const TensorInfo& info, Box box, uint64_t offset_bytes,
                   uint64_t length_bytes) {
    if (used_bytes_ + length_bytes > kWindowBytes || boxes_.size() == kWindowBoxes) {
      CAIRN_TRY(Flush());
    }
    std::byte* const memory = memory_.get() + used_bytes_;
    Shape sizes = box.sizes;
    requests_.push_back(
        {.fqn = info.fqn,
         .box = std::move(box),
         .target = {.dtype = info.dtype, .shape = std::move(sizes), .data = memory}});
    boxes_.push_back({tensor, offset_bytes, {memory, length_bytes}});
    used_bytes_ = (used_bytes_ + length_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    return {};
  }

  Result<void> Flush() {
    if (boxes_.empty()) return {};
    CAIRN_TRY_ASSIGN(const LoadReport report, load_(requests_));
    bytes_read_ += report.bytes_read;
    for (const LoadedBox& box : boxes_) {
      CAIRN_TRY(on_bytes_(box.tensor, box.offset_bytes, box.bytes));
    }
    requests_.clear();
    boxes_.clear();
    used_bytes_ = 0;
    return {};
  }

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct LoadedBox {
    size_t tensor;
    uint64_t offset_bytes;  // in the row-major payload of the tensor
    std::span<const std::byte> bytes;
  };
  const RequestLoader& load_;
  const PayloadCallback& on_bytes_;
  std::unique_ptr<std::byte[]> memory_;
  uint64_t used_bytes_ = 0;
  std::vector<LoadRequest> requests_;
  std::vector<LoadedBox> boxes_;
  uint64_t bytes_read_ = 0;
};

}  // namespace

RequestLoader LoaderOf(const CheckpointStore& store, const kv::StepInfo& step) {
  return [&](std::span<const LoadRequest> requests) { return store.Examine(step, requests); };
}

Result<uint64_t> ReadRowMajor(const RequestLoader& load, std::span<const TensorInfo> tensors,
                              const PayloadCallback& on_bytes) {
  CAIRN_TRY(CheckRepeats(tensors));
  Window window(load, on_bytes);
  for (size_t t = 0; t < tensors.size(); ++t) {
    CAIRN_TRY_ASSIGN(const ChunkGrid grid, ChunkGrid::Make(tensors[t].dtype, tensors[t].shape));
    for (uint64_t i = 0; i < grid.chunk_count(); ++i) {
      CAIRN_TRY(
          window.Add(t, tensors[t], grid.chunk(i), grid.offset_bytes(i), grid.length_bytes(i)));
    }
  }
  CAIRN_TRY(window.Flush());
  return window.bytes_read();
}

}  // namespace cairn::core
