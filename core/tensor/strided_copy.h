#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Copies bytes between row-major payload and strided tensor memory.

#include <cstdint>
#include <span>

#include "core/tensor/tensor.h"

namespace cairn::core {

/// Copies bytes [begin_bytes, begin_bytes + target.size()) of the row-major form of `source` to
/// `target`. The range need not be aligned to elements. Requires a range inside the tensor.
/// Cost: one memcpy per contiguous run.
void GatherBytes(const TensorView& source, uint64_t begin_bytes, std::span<std::byte> target);

/// Copies `payload` to bytes [begin_bytes, begin_bytes + payload.size()) of the row-major form of
/// `target`. Requires a range inside the tensor. Cost: one memcpy per contiguous run.
void ScatterBytes(std::span<const std::byte> payload, const TensorTarget& target,
                  uint64_t begin_bytes);

/// Copies one strided tensor to another. Requires the same dtype and shape, which TensorBytes
/// accepts, and memory that does not overlap, except that both may be the same tensor.
void CopyTensor(const TensorView& source, const TensorTarget& target);

}  // namespace cairn::core
