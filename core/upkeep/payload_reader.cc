#include "core/upkeep/payload_reader.h"

#include "core/load/internal/read_boxes.h"
#include "core/tensor/chunk_grid.h"

namespace cairn::core {

RequestLoader LoaderOf(const CheckpointStore& store, const kv::StepInfo& step) {
  return [&](std::span<const LoadRequest> requests) { return store.Examine(step, requests); };
}

Result<uint64_t> ReadRowMajor(const RequestLoader& load, std::span<const TensorInfo> tensors,
                              const PayloadCallback& on_bytes) {
  CAIRN_TRY(CheckRepeats(tensors));
  // Boxes on the default grid are usually the chunks that are stored.
  return internal::ReadBoxes({&load, 1}, tensors, kDefaultChunkBytes,
                             [&](std::span<const internal::LoadedBox> boxes) -> Result<void> {
                               for (const auto& [tensor, offset_bytes, bytes] : boxes) {
                                 CAIRN_TRY(on_bytes(tensor, offset_bytes, bytes[0]));
                               }
                               return {};
                             });
}

}  // namespace cairn::core
