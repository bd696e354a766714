#pragma once
/// The opcodes of a pickle, protocols 2 to 5 (Lib/pickletools.py of CPython describes each).

#include <cstdint>
#include <span>

#include "core/interop/archive/internal/pickle_tree.h"

namespace cairn::core::internal {

/// Limits on the pickles that are read: their length, and how many values they may contain.
inline constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxPickleNodes = uint64_t{1} << 26;

/// Reads `pickle`, which must outlive the tree. kDataLoss: it is not a pickle or a damaged one; the
/// message contains the position. kUnimplemented: an opcode of protocols 0 and 1, of extensions or
/// of buffers outside the pickle. kResourceExhausted: above a limit. Memory: up to 100 bytes per
/// byte of a hostile pickle, about 20 for pickles that torch writes.
Result<PickleTree> ReadPickle(std::span<const std::byte> pickle);

}  // namespace cairn::core::internal
