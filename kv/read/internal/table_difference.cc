// Each table names the tables of its step after it, so tables that two steps share are the oldest
// ones of both. These hide and show the same records in both, so only keys of the other tables can
// differ.

#include "kv/read/internal/table_difference.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "kv/base/key.h"
#include "kv/base/mapping.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {
namespace {

using Tables = std::span<const std::shared_ptr<const TableReader>>;

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

/// The tables that only one of two steps has.
struct Unshared {
  Unshared(const TableStack& a, const TableStack& b) : in_a(a.tables()), in_b(b.tables()) {
    while (!in_a.empty() && !in_b.empty() && in_a.back()->info().id == in_b.back()->info().id) {
      in_a = in_a.first(in_a.size() - 1);
      in_b = in_b.first(in_b.size() - 1);
    }
    shares_any = in_a.size() < a.tables().size();
  }
  Tables in_a;
  Tables in_b;
  bool shares_any = false;
};

}  // namespace

Result<std::optional<std::vector<std::string>>> FindUnsharedFqns(const TableStack& a,
                                                                 const TableStack& b) {
  const Unshared unshared(a, b);
  if (!unshared.shares_any) return std::nullopt;
  std::vector<std::string> fqns;
  for (const Tables tables : {unshared.in_a, unshared.in_b}) {
    for (const auto& table : tables) CAIRN_TRY(AddFqns(*table, fqns));
  }
  std::ranges::sort(fqns);
  fqns.erase(std::ranges::unique(fqns).begin(), fqns.end());
  return fqns;
}

Result<bool> ScanUnshared(const TableStack& base, const TableStack& stack, std::string_view prefix,
                          const TableStack::Visit& visit) {
  const Unshared unshared(base, stack);
  if (!unshared.shares_any) return false;
  MergeIterator in_base(unshared.in_a, TableAccess::kBulk);
  MergeIterator in_stack(unshared.in_b, TableAccess::kBulk);
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
