#pragma once
/// Moves bytes between row-major payload and strided tensor memory.

#include <cstdint>
#include <span>

#include "core/tensor/tensor.h"

namespace cairn::core {

/// Copies bytes [begin_bytes, begin_bytes + target.size()) of the row-major form of `source` into
/// `target`. Any byte range, element-aligned or not. Requires the range to lie inside the tensor.
/// Cost: one memcpy a contiguous run.
void GatherBytes(const TensorView& source, uint64_t begin_bytes, std::span<std::byte> target);

/// The inverse: `payload` becomes bytes [begin_bytes, ...) of the row-major form of `target`.
void ScatterBytes(std::span<const std::byte> payload, const TensorTarget& target,
                  uint64_t begin_bytes);

/// Copies one strided tensor to another of the same dtype and shape, which a known length in bytes
/// belongs to (TensorBytes). Requires memory that does not overlap, or the same tensor twice.
void CopyTensor(const TensorView& source, const TensorTarget& target);

/// Copies `box` (global coordinates) from a row-major chunk covering `source_box` into `target`,
/// which covers `target_box`. Requires `box` inside both.
void CopyBox(DType dtype, std::span<const std::byte> source, const Box& source_box,
             const TensorTarget& target, const Box& target_box, const Box& box);

}  // namespace cairn::core
