#pragma once
/// `kv-admin rebuild`: recovers a store whose newest root cannot be read.

#include <string>

#include "kv/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

/// Puts new roots that name the steps that can be recovered. kFailedPrecondition: there is nothing
/// to rebuild. kDataLoss: something could not be recovered; the rest was.
Result<void> AdminRebuild(const std::string& store, Output& out);

}  // namespace cairn::tools
