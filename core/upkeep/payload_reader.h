#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Streams the row-major bytes of stored tensors in bounded memory, for code that does not need a
/// tensor in one buffer, such as statistics and export.

#include <functional>
#include <span>

#include "core/checkpoint_store.h"

namespace cairn::core {

/// Receives the next bytes of a tensor. `tensor` is its index in the list that was requested;
/// `offset_bytes` is the position in its row-major payload. The bytes contain complete elements and
/// are valid during the call only.
using PayloadCallback = std::function<Result<void>(size_t tensor, uint64_t offset_bytes,
                                                   std::span<const std::byte> bytes)>;

/// Loads requests, such as those for a step that rules convert (docs/conversion.md).
using RequestLoader = std::function<Result<LoadReport>(std::span<const LoadRequest>)>;

/// Returns a load of one step as CheckpointStore::Load, except that the next save does not continue
/// from the step. Both must outlive it.
RequestLoader LoaderOf(const CheckpointStore& store, const kv::StepInfo& step);

/// Calls `on_bytes` with all bytes of all of `tensors`, in order; not at all for tensors without
/// elements. Every byte is checked before it is passed on. Returns the bytes read from storage.
/// Errors: see CheckRepeats and CheckpointStore::Load; an error of `on_bytes` ends the stream.
/// Memory: a load, and 32 MiB.
Result<uint64_t> ReadRowMajor(const RequestLoader& load, std::span<const TensorInfo> tensors,
                              const PayloadCallback& on_bytes);

}  // namespace cairn::core
