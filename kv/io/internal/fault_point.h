#pragma once
/// Points at which tests make file operations fail or end the process.
///
/// Every operation that changes a store passes a named point first, and so do the opens and reads
/// of segments and tables. Without a hook, a point costs one relaxed load. crash_test compares this
/// list with the points that were passed. When a store is created and when a writer takes its
/// lease:
///   CAIRN.create CAIRN.write CAIRN.sync CAIRN.link CAIRN.linked CAIRN.directory_sync CAIRN.done
///   CAIRN.remove
///   leases.create leases.write leases.rename leases.remove
/// In the order of a commit, with the parts and messages of the ranks in pending/:
///   segments.create segment.create segment.write segment.seal segment.sync
///   segments.directory_sync
///   pending.create pending.write pending.link
///   tables.create tables.write tables.sync tables.linked tables.directory_sync tables.done
///   pages.create pages.write pages.sync pages.rename pages.linked pages.directory_sync pages.done
///   roots.create roots.write roots.sync roots.link roots.linked roots.directory_sync roots.done
///   hint.create hint.write hint.rename
///   roots.remove segments.remove tables.remove pending.remove commit.done
/// A delete passes the points of the root. A read passes:
///   object.open segment.open segment.read
/// kv/storage/files/internal/directory_storage.h documents the points of one object.
/// Removals of pages and of temporary files pass pages.remove, hint.remove and the like.

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "kv/base/error.h"

namespace cairn::kv::internal {

/// Returns 0 to continue, or the errno with which the operation fails. May end the process.
using FaultHook = int (*)(const char* point);

inline std::atomic<FaultHook> fault_hook{nullptr};

inline int FaultPoint(const char* point) {
  const FaultHook hook = fault_hook.load(std::memory_order_relaxed);
  return hook == nullptr ? 0 : hook(point);
}

/// Passes the point, if it is not null. Returns its failure as that of a system call; `what` and
/// `path` as for SystemError.
inline Result<void> PassPoint(const char* point, std::string what, std::string_view path) {
  const int fault = point == nullptr ? 0 : FaultPoint(point);
  return fault == 0 ? Result<void>() : Fail(SystemError(fault, std::move(what), path));
}

}  // namespace cairn::kv::internal
