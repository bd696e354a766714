#pragma once
/// `kv-admin tag`, `untag` and `prune`: names of steps, and which steps remain.

#include <cstdint>
#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct TagCommand {
  std::string store;  // STORE@STEP
  std::string name;
};
Result<void> AdminTag(const TagCommand& command, Output& out);
Verb TagVerb(TagCommand& command);
/// `store` may have no step; with one, the tag must be that of this step.
Result<void> AdminUntag(const TagCommand& command, Output& out);
Verb UntagVerb(TagCommand& command);

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
