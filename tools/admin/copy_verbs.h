#pragma once
/// The command lines of `kv-admin push`, `pull` and `mirror`.

#include "tools/admin/copy.h"
#include "tools/admin/mirror.h"
#include "tools/common/command_line.h"

namespace cairn::tools {

// The command receives what the user wrote, and outlives the verb.
Verb PushVerb(CopyCommand& command);
Verb PullVerb(CopyCommand& command);
Verb MirrorVerb(MirrorCommand& command);

}  // namespace cairn::tools
