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
  bool no_grace = false;  // removes the files at once, although readers may still use them
};

/// Deletes the steps, or with `dry_run` only computes what would be freed, and prints the result.
Result<void> AdminDelete(const DeleteOptions& options, Output& out);

}  // namespace cairn::tools
