#include "kv/table/internal/table_stack.h"

#include <fmt/format.h>

#include "kv/base/key.h"
#include "kv/base/mapping.h"
#include "kv/storage/internal/concurrent_requests.h"
#include "kv/storage/internal/object_names.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {

TableStack::TableStack(std::vector<std::shared_ptr<const TableReader>> tables)
    : tables_(std::move(tables)) {
  CAIRN_CHECK(tables_.size() <= kMaxTables);
}

Result<std::optional<std::vector<std::byte>>> TableStack::Get(std::string_view key) const {
  for (const auto& table : tables_) {
    CAIRN_TRY_ASSIGN(auto value, table->Get(key));
    if (!value) continue;
    if (value->empty()) break;
    return value;
  }
  return std::nullopt;
}

namespace {

/// Returns the first key that follows all keys that begin with `prefix`; empty if there is none.
std::string EndOf(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(end.back() + 1);
  return end;
}

}  // namespace

Result<void> TableStack::Scan(std::string_view prefix, const Visit& visit) const {
  return ScanFrom(prefix, prefix, visit);
}

Result<void> TableStack::ScanFrom(std::string_view first_key, std::string_view prefix,
                                  const Visit& visit) const {
  // A key of one byte is the beginning of a column, which is probably read completely.
  const TableAccess access = first_key.size() <= 1 ? TableAccess::kBulk : TableAccess::kLookup;
  return ScanUntil(first_key, EndOf(prefix), access, visit);
}

Result<void> TableStack::ScanContents(const Visit& visit) const {
  return ScanUntil(ColumnPrefix(Column::kTensors), ColumnPrefix(Column::kSegments),
                   TableAccess::kBulk, visit);
}

Result<void> TableStack::ScanUntil(std::string_view first_key, std::string_view end,
                                   TableAccess access, const Visit& visit) const {
  MergeIterator iterator(tables_, access, end);
  AlignedBytes aligned;
  CAIRN_TRY(iterator.Seek(first_key));
  while (iterator.Valid()) {
    const auto value = iterator.value();
    if (!value.empty()) {
      const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
      CAIRN_TRY_ASSIGN(const bool more, visit(iterator.key(), aligned.Assign(text)));
      if (!more) return {};
    }
    CAIRN_TRY(iterator.Next());
  }
  return {};
}

Result<OpenTables::Table> OpenTables::Open(const TableInfo& info) {
  {
    const MutexLock lock(mutex_);
    const Table* const found = open_.Find(info.id);
    if (found != nullptr && (*found)->info() == info) return *found;
  }
  CAIRN_TRY_ASSIGN(auto table, TableReader::Open(storage_, info));
  const MutexLock lock(mutex_);
  open_.Put(info.id, table);
  return table;
}

Result<TableStack> OpenTables::OpenStack(std::span<const TableInfo> infos) {
  if (infos.size() > kMaxTables) {
    return Fail(ErrorCode::kDataLoss, fmt::format("a step has {} tables, more than the limit of {}",
                                                  infos.size(), kMaxTables));
  }
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
  open_.RemoveIf([&](const ObjectId& id, const Table&) {
    const auto size = storage_->Size(ObjectName(ObjectKind::kTable, id));
    return !size && size.error().code == ErrorCode::kNotFound;
  });
}

void OpenTables::Forget(const ObjectId& id) {
  const MutexLock lock(mutex_);
  open_.RemoveIf([&](const ObjectId& other, const Table&) { return other == id; });
}

}  // namespace cairn::kv::internal
