#pragma once
/// `kv-admin repair`: replaces damaged payload by good copies.

#include <string>
#include <vector>

#include "tools/common/command_line.h"

namespace cairn::tools {

struct RepairCommand {
  std::string store;
  std::vector<std::string> sources;
  bool dry_run = false;
  bool json = false;
};

/// The command receives what the user wrote, and outlives the verb.
Verb RepairVerb(RepairCommand& command);

}  // namespace cairn::tools
