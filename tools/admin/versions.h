#pragma once
/// `kv-admin tag` and `kv-admin prune`: names of steps, and which steps remain.

#include <cstdint>
#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct TagCommand {
  std::string store;  // STORE@STEP, or STORE with `remove`
  std::string name;
  bool remove = false;
};
Result<void> AdminTag(const TagCommand& command, Output& out);
Verb TagVerb(TagCommand& command);

struct PruneCommand {
  std::string store;
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  std::vector<std::string> keep_best;  // METRIC:N or METRIC:N:max
  bool dry_run = false;
  bool no_grace = false;
};
Result<void> AdminPrune(const PruneCommand& command, Output& out);
Verb PruneVerb(PruneCommand& command);

}  // namespace cairn::tools
