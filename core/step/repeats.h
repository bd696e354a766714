#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Tensors that are longer than what is stored of them, because they repeat elements of another
/// one, as those that expand() returns do.

#include <cstdint>
#include <span>

#include "core/step/contents.h"
#include "kv/base/error.h"

namespace cairn::core {

/// A tensor that repeats its elements in memory, as expand() does, is stored as an alias if it is
/// longer than its memory by more than this. Exports refuse tensors that are.
inline constexpr uint64_t kMaxRepeatedBytes = uint64_t{1} << 30;

/// kResourceExhausted: `tensors` repeat elements of those whose memory they share, as expand()
/// does, and are more than kMaxRepeatedBytes longer than these. Without this limit, a record of a
/// few bytes could occupy a reader for years, or fill its disk.
Result<void> CheckRepeats(std::span<const TensorInfo> tensors);

}  // namespace cairn::core
