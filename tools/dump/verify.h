#pragma once
/// `kv-dump verify`: reads every byte and checks every digest and record.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Checks a store, or the step that the address names. Returns the exit status, which is
/// kExitDiffers if there is damage.
Result<int> DumpVerify(const DumpRun& run, const std::string& address);

}  // namespace cairn::tools
