#pragma once
/// Streams the row-major bytes of stored tensors in bounded memory: for statistics, export and the
/// like, which need no tensor in one piece.

#include <functional>
#include <span>

#include "core/checkpoint_store.h"

namespace cairn::core {

/// `tensor` is the index in the list that was asked for; pieces of one tensor come in order and
/// hold whole elements. The bytes are valid during the call only.
using PieceCallback = std::function<Result<void>(size_t tensor, uint64_t offset_bytes,
                                                 std::span<const std::byte> bytes)>;

/// Calls `piece` for all bytes of all of `tensors`, in their order; tensors without elements get no
/// call. Every byte is checked before it is handed on. Errors: as CheckpointStore::Load, and those
/// of `piece`. Memory: 32 MiB beside that of a load. Returns the bytes taken from storage.
Result<uint64_t> ReadRowMajor(const CheckpointStore& store, const kv::StepInfo& step,
                              std::span<const TensorInfo> tensors, const PieceCallback& piece);

}  // namespace cairn::core
