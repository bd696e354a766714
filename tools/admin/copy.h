#pragma once
/// `kv-admin push`, `pull` and `mirror`: copy steps between stores.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/copy_options.h"
#include "kv/base/error.h"
#include "kv/store.h"
#include "tools/common/command_line.h"
#include "tools/common/json.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

/// The arguments that push, pull, mirror and a fork to another store share.
struct CopyCommand {
  std::string from;
  std::string to;
  uint64_t threads = 4;
  std::optional<uint64_t> into;  // fork: the number of the copy
  std::string max_rate;          // bytes per second, as the user wrote them; empty: no limit
  bool overwrite = false;
  bool json = false;
};

/// Returns the limit that --max-rate sets, for all copies of the command; null if there is none.
/// kInvalidArgument: it is not a positive number of bytes.
Result<std::shared_ptr<kv::Throttle>> CopyThrottle(const CopyCommand& command);

/// Copies the steps that `from` names and prints one line per step. kNotFound: one of them was
/// deleted during the copy. Other errors: see kv::CopySteps.
Result<void> AdminCopy(const CopyCommand& command, Output& out);

/// Opens a store for writing, and creates it if it is absent. kInvalidArgument: a step follows its
/// name.
Result<std::unique_ptr<kv::Store>> OpenCopyTarget(const std::string& to);

/// The report of one copy, and its duration.
struct TimedCopy {
  kv::CopyReport report;
  double seconds = 0;
  uint64_t copied_bytes() const;
};
/// Copies with a progress line. `throttle` may be null. Errors: see kv::CopySteps.
Result<TimedCopy> CopyWithProgress(kv::Store& from, kv::Store& to, const CopyCommand& command,
                                   const std::shared_ptr<kv::Throttle>& throttle,
                                   std::vector<uint64_t> steps);
/// Prints one line per step, except for steps that were already there if `only_new`.
void PrintCopy(const TimedCopy& copy, bool only_new, Output& out);
Json CopyJson(const kv::Store& from, const kv::Store& to, const TimedCopy& copy);

// --- `kv-admin mirror`: copies all steps that another store lacks, once or continuously

struct MirrorCommand {
  CopyCommand copy;
  bool follow = false;
  double interval_seconds = 10;  // between two searches for new steps, if no change is noticed
  bool prune = false;            // delete the steps of `to` that `from` does not have
  bool dry_run = false;
};

/// Copies the steps of `from` that `to` lacks. With `follow`, waits for new ones until SIGINT or
/// SIGTERM, which is a success, and continues after kUnavailable. Other errors: see kv::CopySteps.
/// kFailedPrecondition: `from` has no steps, and `prune` would delete all of `to`.
Result<void> AdminMirror(const MirrorCommand& command, Output& out);

// --- The command lines of `kv-admin push`, `pull` and `mirror`

// The command receives what the user wrote, and outlives the verb.
Verb PushVerb(CopyCommand& command);
Verb PullVerb(CopyCommand& command);
Verb MirrorVerb(MirrorCommand& command);

}  // namespace cairn::tools
