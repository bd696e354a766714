#pragma once
/// Open tables, kept open between reads.

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/thread_annotations.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_info.h"
#include "kv/table/internal/table_reader.h"
#include "kv/table/internal/table_stack.h"

namespace cairn::kv::internal {

/// A cache of open tables. Steps that share tables share their readers. Threads: safe.
class OpenTables {
 public:
  explicit OpenTables(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}

  /// Opens the tables of a step, newest first. Returns the errors of TableStack::Open.
  Result<TableStack> OpenStack(std::span<const TableInfo> infos);
  /// Drops the table from the cache, before it is removed.
  void Forget(const ObjectId& id);
  /// Drops the tables whose files another process has removed.
  void DropRemoved();

 private:
  static constexpr size_t kMaxOpen = 64;
  using Entry = std::pair<ObjectId, std::shared_ptr<const TableReader>>;
  Result<std::shared_ptr<const TableReader>> Open(const TableInfo& info);
  std::shared_ptr<const TableReader> Find(const TableInfo& info);

  const std::shared_ptr<Storage> storage_;
  Mutex mutex_;
  std::list<Entry> recent_ CAIRN_GUARDED_BY(mutex_);  // newest first
  std::map<ObjectId, std::list<Entry>::iterator> by_id_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
