#pragma once
/// Writes chunks as another program may divide a tensor (docs/format/chunk.md): any boxes, and
/// pages of any size.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/state_dict/state_dict.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/strided_copy.h"
#include "core/tensor/tensor.h"
#include "kv/base/key.h"
#include "kv/step_writer.h"
#include "tests/kv/byte_payload.h"

namespace cairn::core {

/// Returns the row-major bytes of a box of `tensor`.
inline std::vector<std::byte> BytesOf(const TensorView& tensor, const Box& box) {
  const auto strides = RowMajorStrides(tensor.shape);
  const uint64_t origin =
      std::inner_product(box.offsets.begin(), box.offsets.end(), strides.begin(), uint64_t{0}) *
      schema::ElementBytes(tensor.dtype);
  std::vector<std::byte> bytes(*TensorBytes(tensor.dtype, box.sizes));
  GatherBytes({tensor.dtype, box.sizes, strides, tensor.data + origin}, 0, bytes);
  return bytes;
}

/// Begins a step with the tensor "w" of so many chunks, which the caller adds.
inline Result<std::unique_ptr<kv::StepWriter>> BeginForeign(CheckpointStore& store, uint64_t step,
                                                            const TensorView& tensor,
                                                            uint64_t chunks) {
  CAIRN_TRY_ASSIGN(auto writer, store.kv().Begin(step, {}));
  const TensorInfo info{.fqn = "w",
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .nbytes = *TensorBytes(tensor.dtype, tensor.shape),
                        .chunk_count = chunks};
  CAIRN_TRY(writer->AddRecord(kv::Column::kTensors, kv::FqnKey("w"), internal::EncodeTensor(info)));
  StateDict state;
  state.root().Tensor("w", tensor);
  CAIRN_TRY(writer->SetStructure(EncodeTree(state.tree)));
  return writer;
}

/// Adds the chunk that was appended last.
inline Result<void> AddForeign(kv::StepWriter& writer, const Box& box, kv::ChunkEntry entry) {
  entry.sizes = box.sizes;
  entry.since_step = 1;
  return writer.AddChunk(kv::ChunkKey("w", box.offsets), std::move(entry), /*reused=*/false);
}

/// Commits `tensor` as "w" in these chunks, with pages of 2^page_bits bytes.
inline Result<void> WriteForeign(CheckpointStore& store, uint64_t step, const TensorView& tensor,
                                 const std::vector<Box>& boxes, uint8_t page_bits) {
  CAIRN_TRY_ASSIGN(auto writer, BeginForeign(store, step, tensor, boxes.size()));
  for (const Box& box : boxes) {
    const std::vector<std::byte> bytes = BytesOf(tensor, box);
    CAIRN_TRY_ASSIGN(const auto appended,
                     writer->Append(kv::testing::CopiedPayload(bytes), kv::SegmentAlignment::k4096,
                                    {}, page_bits));
    CAIRN_TRY(AddForeign(*writer, box, {.extents = appended.extent, .digest = appended.digest}));
  }
  CAIRN_TRY(writer->Commit(
      {.tensor_count = 1, .logical_bytes = *TensorBytes(tensor.dtype, tensor.shape)}));
  return {};
}

}  // namespace cairn::core
