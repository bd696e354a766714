#pragma once
/// `kv-admin compact`: rewrites segments of which steps use only a part.

#include <string>

#include "kv/error.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct CompactCommand {
  std::string store;
  double max_dead_percent = 15;
  std::string max_rate;  // empty: no limit
  bool fold = false;
  bool compress = false;
  bool dry_run = false;
  bool no_grace = false;  // removes the old files at once, although readers may still use them
  bool json = false;
};

/// Compacts the store, or with `dry_run` only computes what would be done, and prints the result.
Result<void> AdminCompact(const CompactCommand& command, Output& out);

/// The command line of the verb.
Verb CompactVerb(CompactCommand& command);

}  // namespace cairn::tools
