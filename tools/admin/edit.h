#pragma once
/// `kv-admin rename`, `drop`, `graft` and `fork`: new steps made of the records of existing steps.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/common/command_line.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct EditCommand {
  std::string address;             // STORE or STORE@STEP
  uint64_t into = 0;               // number of the new step
  std::vector<std::string> names;  // of rename: OLD=NEW
  std::vector<std::string> drop;   // patterns
  std::vector<std::string> graft;  // patterns; of the step `graft_from`
  uint64_t graft_from = 0;
  std::string graft_under;
  std::string fork_to;                // another store; empty: the same
  std::optional<uint64_t> fork_into;  // as `into`, which a fork to another store may omit
  bool overwrite = false;
};

// The command receives what the user wrote, and outlives the verb.
Verb RenameVerb(EditCommand& command);
Verb DropVerb(EditCommand& command);
Verb GraftVerb(EditCommand& command);
Verb ForkVerb(EditCommand& command);

}  // namespace cairn::tools
