#pragma once
/// Reads the row-major bytes of tensors box by box in bounded memory, from one step or from two.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/load/load_options.h"
#include "core/step/contents.h"

namespace cairn::core::internal {

/// A box of a tensor that was read.
struct LoadedBox {
  size_t tensor = 0;                                // index of the tensor
  uint64_t offset_bytes = 0;                        // in the row-major payload of the tensor
  std::array<std::span<const std::byte>, 2> bytes;  // by load; the second is empty without one
};

/// Loads requests from one step.
using BoxLoad = std::function<Result<LoadReport>(std::span<const LoadRequest>)>;
/// Receives the boxes that were read together, which remain valid during the call.
using BoxesCallback = std::function<Result<void>(std::span<const LoadedBox>)>;

/// Divides `tensors` into boxes of at most `box_bytes` (ChunkGrid), reads many at once with each of
/// the one or two `loads`, and passes all boxes to `on_boxes`, in order. Requires box_bytes of at
/// most 16 MiB, and tensors that CheckRepeats accepts. Returns the bytes read from storage. Errors
/// of a load and of `on_boxes` end the reading. Memory: 32 MiB, and a load.
Result<uint64_t> ReadBoxes(std::span<const BoxLoad> loads, std::span<const TensorInfo> tensors,
                           uint64_t box_bytes, const BoxesCallback& on_boxes);

}  // namespace cairn::core::internal
