#pragma once
/// Checks of the files of a directory, which stores use without the operations of a storage.

#include <span>

#include "tools/admin/storage_checks.h"

namespace cairn::tools {

/// Requires that both storages have kv::LocalFiles.
std::span<const StorageCheck> FileChecks();

}  // namespace cairn::tools
