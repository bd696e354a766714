#pragma once
/// Compares steps by the tables that they do not share.

#include <optional>
#include <string>
#include <vector>

#include "kv/error.h"
#include "kv/internal/table/table_stack.h"

namespace cairn::kv::internal {

/// See Snapshot::FindUnsharedFqns.
Result<std::optional<std::vector<std::string>>> FindUnsharedFqns(const TableStack& a,
                                                                 const TableStack& b);

}  // namespace cairn::kv::internal
