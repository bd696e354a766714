// A list in the order of the last use, and an index of it.

#include "kv/table/internal/open_tables.h"

#include <iterator>
#include <vector>

#include "kv/storage/internal/concurrent_requests.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

std::shared_ptr<const TableReader> OpenTables::Find(const TableInfo& info) {
  const MutexLock lock(mutex_);
  const auto found = by_id_.find(info.id);
  if (found == by_id_.end() || found->second->second->info() != info) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->second;
}

Result<std::shared_ptr<const TableReader>> OpenTables::Open(const TableInfo& info) {
  if (auto found = Find(info)) return found;
  CAIRN_TRY_ASSIGN(auto table, TableReader::Open(storage_, info));
  const MutexLock lock(mutex_);
  if (const auto found = by_id_.find(info.id); found != by_id_.end()) {
    recent_.erase(found->second);
    by_id_.erase(found);
  }
  recent_.emplace_front(info.id, table);
  by_id_[info.id] = recent_.begin();
  if (recent_.size() > kMaxOpen) {
    by_id_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return table;
}

Result<TableStack> OpenTables::OpenStack(std::span<const TableInfo> infos) {
  if (infos.size() > kMaxTables) return TableStack::Open(storage_, infos);  // returns the error
  std::vector<std::shared_ptr<const TableReader>> tables(infos.size());
  CAIRN_TRY(ForEachRequest(*storage_, infos.size(), [&](size_t i) -> Result<void> {
    CAIRN_TRY_ASSIGN(tables[i], Open(infos[i]));
    return {};
  }));
  return TableStack(std::move(tables));
}

void OpenTables::DropRemoved() {
  if (storage_->local_files() == nullptr) return;
  const MutexLock lock(mutex_);
  for (auto entry = recent_.begin(); entry != recent_.end();) {
    const auto size = storage_->Size(ObjectName(ObjectKind::kTable, entry->first));
    const bool is_removed = !size && size.error().code == ErrorCode::kNotFound;
    if (is_removed) by_id_.erase(entry->first);
    entry = is_removed ? recent_.erase(entry) : std::next(entry);
  }
}

void OpenTables::Forget(const ObjectId& id) {
  const MutexLock lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  recent_.erase(found->second);
  by_id_.erase(found);
}

}  // namespace cairn::kv::internal
