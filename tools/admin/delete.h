#pragma once
/// `kv-admin delete`: deletes whole steps and nothing else.

#include <cstdint>
#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct DeleteOptions {
  std::string store;
  std::vector<uint64_t> steps;
  bool dry_run = false;
};

/// Deletes the steps, or with `dry_run` only computes what would be freed, and prints the result.
Result<void> AdminDelete(const DeleteOptions& options, Output& out);

}  // namespace cairn::tools
