#pragma once
/// `kv-admin mirror`: copies all steps that another store lacks, once or continuously.

#include "kv/error.h"
#include "tools/admin/copy.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct MirrorCommand {
  CopyCommand copy;
  bool follow = false;
  double interval_seconds = 10;  // between two searches for new steps, if no change is noticed
  bool prune = false;            // delete the steps of `to` that `from` does not have
  bool dry_run = false;
};

/// Copies the steps of `from` that `to` lacks. With `follow`, waits for new ones until SIGINT or
/// SIGTERM, which is a success, and continues after kUnavailable. Other errors are those of
/// kv::CopySteps. kFailedPrecondition: `from` has no steps, and `prune` would delete all of `to`.
Result<void> AdminMirror(const MirrorCommand& command, Output& out);

}  // namespace cairn::tools
