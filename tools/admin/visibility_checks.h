#pragma once
/// Checks of what one machine sees of the changes that another one has made, and when.

#include <span>

#include "tools/admin/storage_checks.h"

namespace cairn::tools {

std::span<const StorageCheck> VisibilityChecks();

}  // namespace cairn::tools
