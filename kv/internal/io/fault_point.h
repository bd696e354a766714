#pragma once
/// Points at which tests make file operations fail or end the process.
///
/// Every operation that changes a store passes a named point first. Without a hook, a point costs
/// one relaxed load. The names, in the order of a commit:
///   segment.create segment.write segment.seal segment.sync segment.directory_sync
///   manifest.create manifest.write manifest.sync manifest.directory_sync
///   index.write index.flush index.flushed
///   commit.rename commit.directory_sync commit.done
/// in the order of a delete:
///   delete.rename delete.directory_sync index.write index.flush index.flushed delete.unlink
/// and in the order of a read: segment.open segment.read. Reads of other files pass manifest.open,
/// index.open or file.open.

#include <atomic>

namespace cairn::kv::internal {

/// Returns 0 to continue, or the errno with which the operation fails. May end the process.
using FaultHook = int (*)(const char* point);

extern std::atomic<FaultHook> fault_hook;

inline int FaultPoint(const char* point) {
  const FaultHook hook = fault_hook.load(std::memory_order_relaxed);
  return hook == nullptr ? 0 : hook(point);
}

}  // namespace cairn::kv::internal
