#pragma once
/// Compares steps by the tables that they do not share.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/table/internal/table_stack.h"

namespace cairn::kv::internal {

/// See Snapshot::FindUnsharedFqns.
Result<std::optional<std::vector<std::string>>> FindUnsharedFqns(const TableStack& a,
                                                                 const TableStack& b);

/// See Snapshot::ScanUnshared. `prefix` is the prefix of the keys in tables.
Result<bool> ScanUnshared(const TableStack& base, const TableStack& stack, std::string_view prefix,
                          const TableStack::Visit& visit);

}  // namespace cairn::kv::internal
