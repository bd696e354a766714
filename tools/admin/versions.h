#pragma once
/// `kv-admin tag`, `untag`, `policy` and `prune`: names of steps, and which steps remain.

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

/// Which steps remain.
struct KeepOptions {
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  std::vector<std::string> keep_best;  // as kv::ParseKeepBest parses them
};

struct PolicyCommand {
  std::string store;
  KeepOptions keep;
  bool none = false;  // removes the policy
  bool json = false;
};
/// Shows the policy that is kept in a store, or sets it.
Result<void> AdminPolicy(const PolicyCommand& command, Output& out);
Verb PolicyVerb(PolicyCommand& command);

struct PruneCommand {
  std::string store;
  KeepOptions keep;  // the policy of the store if it is empty
  bool dry_run = false;
  bool no_grace = false;
};
Result<void> AdminPrune(const PruneCommand& command, Output& out);
Verb PruneVerb(PruneCommand& command);

}  // namespace cairn::tools
