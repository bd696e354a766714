#pragma once
/// `kv-admin rebuild-index`: builds an index from the kept manifests, for a store whose index does
/// not open.

#include <string>

#include "kv/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

/// Replaces the index of a store and keeps the old one. kFailedPrecondition: the index is intact.
/// kDataLoss: some steps could not be restored; the others were.
Result<void> AdminRebuildIndex(const std::string& store, Output& out);

}  // namespace cairn::tools
