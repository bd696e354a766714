// Tables that two steps share hide and show the same records in both, as long as they are in the
// same order, which merging preserves. So only keys of the other tables can differ.

#include "kv/internal/table_difference.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "kv/key.h"

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

}  // namespace cairn::kv::internal
