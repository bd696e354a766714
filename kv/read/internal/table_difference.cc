// Tables that two steps share hide and show the same records in both, as long as they are in the
// same order, which merging preserves. So only keys of the other tables can differ.

#include "kv/read/internal/table_difference.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "kv/base/key.h"
#include "kv/base/mapping.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {
namespace {

using Tables = std::span<const std::shared_ptr<const TableReader>>;

std::set<ObjectId> IdsOf(Tables tables) {
  std::set<ObjectId> ids;
  for (const auto& table : tables) ids.insert(table->info().id);
  return ids;
}

/// Returns the shared tables, in the order of `tables`.
std::vector<ObjectId> SharedOrder(Tables tables, const std::set<ObjectId>& others) {
  std::vector<ObjectId> order;
  for (const auto& table : tables) {
    if (others.contains(table->info().id)) order.push_back(table->info().id);
  }
  return order;
}

/// Adds the FQNs of the keys of a table.
Result<void> AddFqns(const TableReader& table, std::vector<std::string>& fqns) {
  const auto iterator = table.NewIterator(TableAccess::kBulk);
  for (const Column column : {Column::kTensors, Column::kChunks, Column::kValues}) {
    const std::string prefix = ColumnPrefix(column);
    CAIRN_TRY(iterator->Seek(prefix));
    while (iterator->Valid() && iterator->key().starts_with(prefix)) {
      const std::string_view key = iterator->key().substr(prefix.size());
      const std::string_view fqn = key.substr(0, key.find('\0'));
      if (fqns.empty() || fqns.back() != fqn) fqns.emplace_back(fqn);
      CAIRN_TRY(iterator->Next());
    }
  }
  return {};
}

/// Returns how many of the oldest tables both have.
size_t SharedOldest(Tables a, Tables b) {
  size_t count = 0;
  while (count < a.size() && count < b.size() &&
         a[a.size() - 1 - count]->info().id == b[b.size() - 1 - count]->info().id) {
    ++count;
  }
  return count;
}

}  // namespace

Result<std::optional<std::vector<std::string>>> FindUnsharedFqns(const TableStack& a,
                                                                 const TableStack& b) {
  const std::set<ObjectId> ids_a = IdsOf(a.tables());
  const std::set<ObjectId> ids_b = IdsOf(b.tables());
  const std::vector<ObjectId> shared = SharedOrder(a.tables(), ids_b);
  if (shared.empty() || shared != SharedOrder(b.tables(), ids_a)) return std::nullopt;
  std::vector<std::string> fqns;
  for (const auto& table : a.tables()) {
    if (!ids_b.contains(table->info().id)) CAIRN_TRY(AddFqns(*table, fqns));
  }
  for (const auto& table : b.tables()) {
    if (!ids_a.contains(table->info().id)) CAIRN_TRY(AddFqns(*table, fqns));
  }
  std::ranges::sort(fqns);
  fqns.erase(std::ranges::unique(fqns).begin(), fqns.end());
  return fqns;
}

Result<bool> ScanUnshared(const TableStack& base, const TableStack& stack, std::string_view prefix,
                          const TableStack::Visit& visit) {
  const size_t shared = SharedOldest(base.tables(), stack.tables());
  if (shared == 0) return false;
  MergeIterator in_base(base.tables().first(base.tables().size() - shared), TableAccess::kBulk);
  MergeIterator in_stack(stack.tables().first(stack.tables().size() - shared), TableAccess::kBulk);
  CAIRN_TRY(in_base.Seek(prefix));
  CAIRN_TRY(in_stack.Seek(prefix));
  const auto has_key = [&](const MergeIterator& iterator) {
    return iterator.Valid() && iterator.key().starts_with(prefix);
  };
  AlignedBytes aligned;
  while (has_key(in_base) || has_key(in_stack)) {
    const int order = !has_key(in_base)    ? 1
                      : !has_key(in_stack) ? -1
                                           : in_base.key().compare(in_stack.key());
    bool more = true;
    if (order < 0) {
      // Only a table of the base has it, so an older table of the step decides.
      const std::string key(in_base.key());
      CAIRN_TRY_ASSIGN(const auto record, stack.Get(key));
      CAIRN_TRY_ASSIGN(more, visit(key, record ? std::span<const std::byte>(*record)
                                               : std::span<const std::byte>()));
    } else {
      const auto value = in_stack.value();
      const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
      CAIRN_TRY_ASSIGN(more, visit(in_stack.key(), text.empty() ? std::span<const std::byte>()
                                                                : aligned.Assign(text)));
    }
    if (!more) return true;
    if (order <= 0) CAIRN_TRY(in_base.Next());
    if (order >= 0) CAIRN_TRY(in_stack.Next());
  }
  return true;
}

}  // namespace cairn::kv::internal
